//go:build race

package expr

// raceEnabled: the race detector makes everything some ten times slower.
const raceEnabled = true
