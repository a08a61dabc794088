package sim

import (
	"math/rand/v2"
	"time"
)

// chance is the one source of chance of a run.
type chance struct{ *rand.Rand }

func newChance(seed uint64) *chance { return &chance{rand.New(rand.NewPCG(seed, 0x5a9ad))} }

// upTo draws 0 to n-1.
func (c *chance) upTo(n int) int { return c.IntN(n) }

func (c *chance) oneIn(n int) bool { return c.IntN(n) == 0 }

// of says yes so many times in a thousand.
func (c *chance) of(permille int) bool { return permille > 0 && c.IntN(1000) < permille }

// between draws a time, short ones as likely as long ones: each order of magnitude has the same share.
func (c *chance) between(low, high time.Duration) time.Duration {
	d := low
	for d < high && !c.oneIn(4) {
		d *= 2
	}
	d = min(d, high)
	return d/2 + time.Duration(c.Int64N(int64(d/2)+1))
}

// Read makes random bytes; it never fails.
func (c *chance) Read(b []byte) (int, error) {
	for i := range b {
		b[i] = byte(c.Uint32())
	}
	return len(b), nil
}
