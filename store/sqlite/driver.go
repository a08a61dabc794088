package sqlite

import (
	"database/sql"
	"errors"
	"fmt"
	"net/url"

	"modernc.org/sqlite"
)

// All that is particular to the driver stands in this file, so that it can be changed for another.

// dial opens the file for writing, through a single connection, or for reading.
func dial(path string, write bool) (*sql.DB, error) {
	q := url.Values{"_pragma": {"busy_timeout(5000)", "foreign_keys(1)"}}
	if write {
		q["_pragma"] = append(q["_pragma"], "journal_mode(WAL)", "synchronous(FULL)", "wal_autocheckpoint(4000)")
	} else {
		q["_pragma"] = append(q["_pragma"], "query_only(1)")
	}
	db, err := sql.Open("sqlite", "file:"+(&url.URL{Path: path}).EscapedPath()+"?"+q.Encode())
	if err != nil {
		return nil, err
	}
	n := readersMax
	if write {
		n = 1
	}
	db.SetMaxOpenConns(n)
	db.SetMaxIdleConns(n)
	return db, nil
}

// verdict is what an error says about the statement and about the file.
type verdict int

const (
	// passing: nothing is wrong with the statement; trying again may help.
	passing verdict = iota
	// refused: the statement broke a constraint.
	refused
	// broken: the file can't be relied on.
	broken
)

func judge(err error) verdict {
	var e *sqlite.Error
	if !errors.As(err, &e) {
		return passing
	}
	switch e.Code() & 0xff {
	case 18, 19, 20, 25: // TOOBIG, CONSTRAINT, MISMATCH, RANGE
		return refused
	case 10, 11, 14, 26: // IOERR, CORRUPT, CANTOPEN, NOTADB
		return broken
	default:
		return passing
	}
}

// verify reads back what durability rests on.
func verify(db *sql.DB) error {
	var mode string
	if err := db.QueryRow("PRAGMA journal_mode").Scan(&mode); err != nil {
		return err
	}
	var synchronous int
	if err := db.QueryRow("PRAGMA synchronous").Scan(&synchronous); err != nil {
		return err
	}
	if mode != "wal" || synchronous != 2 {
		return fmt.Errorf("the file system doesn't let SQLite be durable (journal_mode=%s, synchronous=%d, want wal, 2): "+
			"choose a data folder on a local disk", mode, synchronous)
	}
	return nil
}
