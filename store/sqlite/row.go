package sqlite

import (
	"fmt"
	"time"

	"github.com/google/uuid"

	"github.com/sagad/sagad/store"
	"github.com/sagad/sagad/store/sqlite/litedb"
)

// filled is b, but never NULL.
func filled(b []byte) []byte {
	if b == nil {
		return []byte{}
	}
	return b
}

func at(micros int64) time.Time { return time.UnixMicro(micros).UTC() }

func fromSaga(s *store.Saga) litedb.Saga {
	row := litedb.Saga{
		Shard: int64(s.Shard), Namespace: s.Namespace, ID: s.ID, Run: s.Run[:], N: s.N, Definition: s.Definition,
		Version: int64(s.Version), Status: int64(s.Status), Digest: filled(s.Digest), StartedAt: s.StartedAt.UnixMicro(),
		ChangedAt: s.ChangedAt.UnixMicro(),
	}
	if !s.Deadline.IsZero() {
		deadline := s.Deadline.UnixMicro()
		row.Deadline = &deadline
	}
	if labels := store.EncodeLabels(s.Labels); labels != "" {
		row.Labels = &labels
	}
	if len(s.Cause) > 0 {
		row.Cause = s.Cause
	}
	if s.SettledByHand != 0 {
		byHand := int64(s.SettledByHand)
		row.SettledByHand = &byHand
	}
	return row
}

func toSaga(r litedb.Saga) (store.Saga, error) {
	s := store.Saga{
		Shard: int(r.Shard), Namespace: r.Namespace, ID: r.ID, Run: uuid.UUID(r.Run), Definition: r.Definition,
		Version: int32(r.Version), Status: store.Status(r.Status), Digest: r.Digest, StartedAt: at(r.StartedAt),
		ChangedAt: at(r.ChangedAt), Cause: r.Cause, N: r.N,
	}
	if r.Deadline != nil {
		s.Deadline = at(*r.Deadline)
	}
	if r.SettledByHand != nil {
		s.SettledByHand = int32(*r.SettledByHand)
	}
	if r.Labels != nil {
		var err error
		if s.Labels, err = store.DecodeLabels(*r.Labels); err != nil {
			return s, fmt.Errorf("labels of saga %s/%s: %w", r.Namespace, r.ID, err)
		}
	}
	return s, nil
}

func toRows(rows []litedb.History) []store.Row {
	history := make([]store.Row, len(rows))
	for i, r := range rows {
		history[i] = store.Row{Run: uuid.UUID(r.Run), N: r.N, Epoch: r.Epoch, Seq: r.Seq, At: at(r.At), Facts: filled(r.Facts)}
	}
	return history
}

func fromItem(i *store.Item) litedb.PutItemParams {
	row := litedb.PutItemParams{
		Namespace: i.Namespace, Run: i.Run[:], Number: int64(i.Number), SagaID: i.SagaID, SagaN: i.Version,
		Definition: i.Definition, Kind: int64(i.Kind), Status: int64(i.Status), Direction: int64(i.Direction),
		Step: store.Text(i.Step), Code: store.Text(i.Code), Message: store.Text(i.Message),
		Fingerprint: store.Text(i.Fingerprint), Attempts: int64(i.Attempts), How: store.Text(i.How),
		OpenedAt: i.OpenedAt.UnixMicro(), ChangedAt: i.ChangedAt.UnixMicro(),
	}
	if i.Blocking {
		row.Blocking = 1
	}
	return row
}

func toItem(r litedb.OpsItem) store.Item {
	return store.Item{
		Namespace: r.Namespace, SagaID: r.SagaID, Run: uuid.UUID(r.Run), Number: int32(r.Number), Definition: r.Definition,
		Kind: int16(r.Kind), Status: int16(r.Status), Direction: int16(r.Direction), Blocking: r.Blocking != 0, Step: r.Step,
		Code: r.Code, Message: r.Message, Fingerprint: r.Fingerprint, Attempts: int32(r.Attempts), How: r.How,
		OpenedAt: at(r.OpenedAt), ChangedAt: at(r.ChangedAt), Version: r.SagaN,
	}
}
