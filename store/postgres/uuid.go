package postgres

import (
	"encoding/binary"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgtype"
)

// uuidArray encodes []uuid.UUID as it is. By itself pgx would go through reflection and text for each element, which is several
// percent of a node's work.
type uuidArray struct{ *pgtype.ArrayCodec }

func (c uuidArray) PlanEncode(m *pgtype.Map, oid uint32, format int16, value any) pgtype.EncodePlan {
	if _, ok := value.([]uuid.UUID); ok && format == pgtype.BinaryFormatCode {
		return uuidArrayPlan{}
	}
	return c.ArrayCodec.PlanEncode(m, oid, format, value)
}

type uuidArrayPlan struct{}

// Encode appends the array in Postgres' binary format: number of dimensions, nulls, element type, then length and lower
// bound, then each element with its length.
func (uuidArrayPlan) Encode(value any, buf []byte) ([]byte, error) {
	ids := value.([]uuid.UUID)
	if ids == nil {
		return nil, nil
	}
	dimensions := uint32(1)
	if len(ids) == 0 {
		dimensions = 0
	}
	buf = binary.BigEndian.AppendUint32(buf, dimensions)
	buf = binary.BigEndian.AppendUint32(buf, 0)
	buf = binary.BigEndian.AppendUint32(buf, pgtype.UUIDOID)
	if len(ids) == 0 {
		return buf, nil
	}
	buf = binary.BigEndian.AppendUint32(buf, uint32(len(ids)))
	buf = binary.BigEndian.AppendUint32(buf, 1)
	for i := range ids {
		buf = binary.BigEndian.AppendUint32(buf, uint32(len(ids[i])))
		buf = append(buf, ids[i][:]...)
	}
	return buf, nil
}

// registerUUIDs teaches a connection's types uuidArray.
func registerUUIDs(m *pgtype.Map) {
	element, ok := m.TypeForOID(pgtype.UUIDOID)
	if !ok {
		return
	}
	m.RegisterType(&pgtype.Type{Name: "_uuid", OID: pgtype.UUIDArrayOID, Codec: uuidArray{&pgtype.ArrayCodec{ElementType: element}}})
	// In exec mode pgx asks Go's types alone what a parameter is.
	m.RegisterDefaultPgType(uuid.UUID{}, "uuid")
	m.RegisterDefaultPgType([]uuid.UUID{}, "_uuid")
}
