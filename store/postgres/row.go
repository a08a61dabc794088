package postgres

import (
	"fmt"
	"time"

	"github.com/google/uuid"

	"github.com/sagad/sagad/store"
	"github.com/sagad/sagad/store/postgres/pgdb"
)

// commitParams lays the batches out as sagad_commit's arrays. Nil arrays would be NULL; these are empty.
func commitParams(batches []*store.Batch) pgdb.CommitParams {
	rows := 0
	for _, b := range batches {
		rows += len(b.Transitions)
	}
	n := len(batches)
	p := pgdb.CommitParams{
		BShard: make([]int32, 0, n), BEpoch: make([]int64, 0, n), BGrant: make([]uuid.UUID, 0, n),
		BSeq: make([]int64, 0, n), BUpdates: make([]int32, 0, n),
		TBatch: make([]int32, 0, rows), TRun: make([]uuid.UUID, 0, rows), TN: make([]int32, 0, rows),
		TAt: make([]time.Time, 0, rows), TFacts: make([][]byte, 0, rows),
		SBatch: []int32{}, SNew: []bool{}, SRun: []uuid.UUID{}, SN: []int32{}, SNamespace: []string{}, SID: []string{},
		SDefinition: []string{}, SVersion: []int32{}, SStatus: []int16{}, SDigest: [][]byte{}, SStartedAt: []time.Time{},
		SChangedAt: []time.Time{}, SDeadline: []time.Time{}, SLabels: []string{}, SCause: [][]byte{},
		SSettledByHand: []int32{},
		IBatch:         []int32{}, IRun: []uuid.UUID{}, INumber: []int32{}, INamespace: []string{}, ISagaID: []string{},
		IDefinition: []string{}, IKind: []int16{}, IStatus: []int16{}, IDirection: []int16{}, IBlocking: []bool{},
		IStep: []string{}, ICode: []string{}, IMessage: []string{}, IFingerprint: []string{}, IAttempts: []int32{},
		IHow: []string{}, IOpenedAt: []time.Time{}, IChangedAt: []time.Time{}, ISagaN: []int64{},
	}
	for i, b := range batches {
		batch := int32(i + 1)
		updates := int32(0)
		for j := range b.Transitions {
			t := &b.Transitions[j]
			p.TBatch = append(p.TBatch, batch)
			p.TRun = append(p.TRun, t.Run)
			p.TN = append(p.TN, int32(t.N))
			p.TAt = append(p.TAt, t.At)
			p.TFacts = append(p.TFacts, filled(t.Facts))
		}
		for _, w := range b.Sagas() {
			s := w.Saga
			if !w.New {
				updates++
			}
			p.SBatch = append(p.SBatch, batch)
			p.SNew = append(p.SNew, w.New)
			p.SRun = append(p.SRun, s.Run)
			p.SN = append(p.SN, int32(s.N))
			p.SNamespace = append(p.SNamespace, s.Namespace)
			p.SID = append(p.SID, s.ID)
			p.SDefinition = append(p.SDefinition, s.Definition)
			p.SVersion = append(p.SVersion, s.Version)
			p.SStatus = append(p.SStatus, int16(s.Status))
			p.SDigest = append(p.SDigest, filled(s.Digest))
			p.SStartedAt = append(p.SStartedAt, s.StartedAt)
			p.SChangedAt = append(p.SChangedAt, s.ChangedAt)
			p.SDeadline = append(p.SDeadline, s.Deadline)
			p.SLabels = append(p.SLabels, store.EncodeLabels(s.Labels))
			p.SCause = append(p.SCause, s.Cause)
			p.SSettledByHand = append(p.SSettledByHand, s.SettledByHand)
		}
		for _, o := range b.Items() {
			p.IBatch = append(p.IBatch, batch)
			p.IRun = append(p.IRun, o.Run)
			p.INumber = append(p.INumber, o.Number)
			p.INamespace = append(p.INamespace, o.Namespace)
			p.ISagaID = append(p.ISagaID, o.SagaID)
			p.IDefinition = append(p.IDefinition, o.Definition)
			p.IKind = append(p.IKind, o.Kind)
			p.IStatus = append(p.IStatus, o.Status)
			p.IDirection = append(p.IDirection, o.Direction)
			p.IBlocking = append(p.IBlocking, o.Blocking)
			p.IStep = append(p.IStep, store.Text(o.Step))
			p.ICode = append(p.ICode, store.Text(o.Code))
			p.IMessage = append(p.IMessage, store.Text(o.Message))
			p.IFingerprint = append(p.IFingerprint, store.Text(o.Fingerprint))
			p.IAttempts = append(p.IAttempts, o.Attempts)
			p.IHow = append(p.IHow, store.Text(o.How))
			p.IOpenedAt = append(p.IOpenedAt, o.OpenedAt)
			p.IChangedAt = append(p.IChangedAt, o.ChangedAt)
			p.ISagaN = append(p.ISagaN, o.Version)
		}
		p.BShard = append(p.BShard, int32(b.Grant.Shard))
		p.BEpoch = append(p.BEpoch, b.Grant.Epoch)
		p.BGrant = append(p.BGrant, b.Grant.ID)
		p.BSeq = append(p.BSeq, b.Seq)
		p.BUpdates = append(p.BUpdates, updates)
	}
	return p
}

// filled is b, but never NULL.
func filled(b []byte) []byte {
	if b == nil {
		return []byte{}
	}
	return b
}

func toSaga(r pgdb.Saga) (store.Saga, error) {
	s := store.Saga{
		Shard: int(r.Shard), Namespace: r.Namespace, ID: r.ID, Run: r.Run, Definition: r.Definition, Version: r.Version,
		Status: store.Status(r.Status), Digest: r.Digest, StartedAt: r.StartedAt.UTC(), ChangedAt: r.ChangedAt.UTC(),
		Cause: r.Cause, N: int64(r.N),
	}
	if r.Deadline != nil {
		s.Deadline = r.Deadline.UTC()
	}
	if r.SettledByHand != nil {
		s.SettledByHand = *r.SettledByHand
	}
	if r.Labels != nil {
		var err error
		if s.Labels, err = store.DecodeLabels(*r.Labels); err != nil {
			return s, fmt.Errorf("labels of saga %s/%s: %w", r.Namespace, r.ID, err)
		}
	}
	return s, nil
}

func toSagas(rows []pgdb.Saga) ([]store.Saga, error) {
	sagas := make([]store.Saga, len(rows))
	for i, r := range rows {
		var err error
		if sagas[i], err = toSaga(r); err != nil {
			return nil, err
		}
	}
	return sagas, nil
}

func toLoaded(r pgdb.LoadRow) (store.Loaded, error) {
	saga, err := toSaga(pgdb.Saga{
		StartedAt: r.StartedAt, ChangedAt: r.ChangedAt, Deadline: r.Deadline, Run: r.Run, Shard: r.Shard, N: r.N,
		Version: r.Version, SettledByHand: r.SettledByHand, Status: r.Status, Namespace: r.Namespace, ID: r.ID,
		Definition: r.Definition, Digest: r.Digest, Labels: r.Labels, Cause: r.Cause,
	})
	if err != nil {
		return store.Loaded{}, err
	}
	l := store.Loaded{Saga: saga, History: make([]store.Row, len(r.Ns))}
	for i, n := range r.Ns {
		l.History[i] = store.Row{
			Run: r.Run, N: int64(n), Epoch: r.Epochs[i], Seq: r.Seqs[i], At: r.Ats[i].UTC(), Facts: r.Facts[i],
		}
	}
	return l, nil
}

func toItem(r pgdb.OpsItem) store.Item {
	return store.Item{
		Namespace: r.Namespace, SagaID: r.SagaID, Run: r.Run, Number: r.Number, Definition: r.Definition, Kind: r.Kind,
		Status: r.Status, Direction: r.Direction, Blocking: r.Blocking, Step: r.Step, Code: r.Code, Message: r.Message,
		Fingerprint: r.Fingerprint, Attempts: r.Attempts, How: r.How, OpenedAt: r.OpenedAt.UTC(),
		ChangedAt: r.ChangedAt.UTC(), Version: r.SagaN,
	}
}
