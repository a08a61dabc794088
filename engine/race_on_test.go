//go:build race

package engine

// raceOn: the race detector is on, which makes everything ten times as slow.
const raceOn = true
