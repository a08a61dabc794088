// Package scenario holds what a whole node promises when things go wrong around it: each test runs nodes, workers of the SDK,
// a NATS server and a store in this process, breaks one thing, and looks at the money. What a cheaper layer shows as
// well is tested there; docs/reliability.md says where.
package scenario
