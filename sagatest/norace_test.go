//go:build !race

package sagatest_test

// raceEnabled: the race detector is on.
const raceEnabled = false
