// Package wire spells everything that engine and workers must spell alike: subjects, consumer names, headers,
// idempotency keys, message ids, the rules for names, limits, and task tokens. Nothing else in this module builds or
// takes apart one of these.
//
// It is pure: no clock, no chance, no I/O. Names that could be misread inside a subject, a consumer name or a key are
// refused before they get there; what has no rule (items) is encoded reversibly. So two different names never share a
// subject, a consumer or a key.
package wire
