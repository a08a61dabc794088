package postgres

import (
	"encoding/binary"
	"errors"
	"time"

	"github.com/jackc/pgx/v5/pgtype"
)

// Times that Postgres knows and Go doesn't. Nothing here writes them, but a person with SQL can, and one such row must not
// keep all others from being read: they are read as the ends of what APIs can tell.
var (
	farPast   = time.Date(1, 1, 1, 0, 0, 0, 1000, time.UTC) // not the zero time, which means none
	farFuture = time.Date(9999, 12, 31, 23, 59, 59, 999_999_000, time.UTC)
)

// registerTimes lets infinite times be read into Go's.
func registerTimes(m *pgtype.Map) {
	t := &pgtype.Type{Name: "timestamptz", OID: pgtype.TimestamptzOID, Codec: finiteTimes{&pgtype.TimestamptzCodec{}}}
	m.RegisterType(t)
	m.RegisterType(&pgtype.Type{Name: "_timestamptz", OID: pgtype.TimestamptzArrayOID, Codec: &pgtype.ArrayCodec{ElementType: t}})
}

var errNullTime = errors.New("a time that must be there is NULL")

type finiteTimes struct{ *pgtype.TimestamptzCodec }

// PlanScan implements pgtype.Codec.
func (c finiteTimes) PlanScan(m *pgtype.Map, oid uint32, format int16, target any) pgtype.ScanPlan {
	if _, ok := target.(*time.Time); ok {
		if inner := c.TimestamptzCodec.PlanScan(m, oid, format, (*pgtype.Timestamptz)(nil)); inner != nil {
			return scanFinite{inner: inner, binary: format == pgtype.BinaryFormatCode}
		}
	}
	return c.TimestamptzCodec.PlanScan(m, oid, format, target)
}

type scanFinite struct {
	inner  pgtype.ScanPlan
	binary bool
}

// y2k is where Postgres counts from, in microseconds since 1970. Infinities are the ends of its 64 bits.
const y2k = 946_684_800_000_000

// Scan implements pgtype.ScanPlan.
func (s scanFinite) Scan(src []byte, target any) error {
	to := target.(*time.Time)
	if s.binary && len(src) == 8 {
		us := int64(binary.BigEndian.Uint64(src))
		switch {
		case us == 1<<63-1:
			*to = farFuture
		case us == -1<<63:
			*to = farPast
		default: // Postgres's range is far from overflowing this
			*to = time.UnixMicro(us + y2k)
		}
		return nil
	}
	var t pgtype.Timestamptz
	if err := s.inner.Scan(src, &t); err != nil {
		return err
	}
	switch {
	case t.InfinityModifier == pgtype.Infinity:
		*to = farFuture
	case t.InfinityModifier == pgtype.NegativeInfinity:
		*to = farPast
	case t.Valid:
		*to = t.Time
	default:
		return errNullTime
	}
	return nil
}
