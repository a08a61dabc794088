package retry

import (
	"errors"
	"math"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

func TestDelaysOverManyAttempts(t *testing.T) {
	const ms, s, h = time.Millisecond, time.Second, time.Hour
	tests := []struct {
		name   string
		policy Policy
		cap    time.Duration
		first  []time.Duration // ceilings after attempts 1, 2, ...
		refuse string          // a part of the error, if it is refused
	}{
		{name: "1s x2, no max", policy: Policy{Initial: s, Factor: 2}, cap: h,
			first: []time.Duration{s, 2 * s, 4 * s, 8 * s, 16 * s, 32 * s, 64 * s, 128 * s, 256 * s, 512 * s, 1024 * s, 2048 * s, h, h}},
		{name: "200ms x2, max 1h", policy: Policy{Initial: 200 * ms, Factor: 2, Max: h}, cap: h,
			first: []time.Duration{200 * ms, 400 * ms, 800 * ms, 1600 * ms, 3200 * ms}},
		{name: "200s x2, no max", policy: Policy{Initial: 200 * s, Factor: 2}, cap: h,
			first: []time.Duration{200 * s, 400 * s, 800 * s, 1600 * s, 3200 * s, h}},
		{name: "1s x1e308", policy: Policy{Initial: s, Factor: 1e308}, cap: h, first: []time.Duration{s, h, h}},
		{name: "1s x1", policy: Policy{Initial: s, Factor: 1}, cap: s, first: []time.Duration{s, s, s}},
		{name: "0s x2 is the default of 1s", policy: Policy{Factor: 2}, cap: h, first: []time.Duration{s, 2 * s, 4 * s}},
		{name: "all zero", policy: Policy{}, cap: h, first: []time.Duration{s, 2 * s, 4 * s}},
		{name: "2h x2, no max: the initial is the cap", policy: Policy{Initial: 2 * h, Factor: 2}, cap: 2 * h,
			first: []time.Duration{2 * h, 2 * h}},
		{name: "max above the default", policy: Policy{Initial: h, Factor: 10, Max: MaxDelay}, cap: MaxDelay,
			first: []time.Duration{h, 10 * h, 100 * h, MaxDelay, MaxDelay}},
		{name: "floor only", policy: Policy{Initial: MinDelay, Max: MinDelay, Factor: 3}, cap: MinDelay,
			first: []time.Duration{MinDelay, MinDelay}},
		{name: "x1.5 keeps fractions", policy: Policy{Initial: s, Factor: 1.5}, cap: h,
			first: []time.Duration{s, 1500 * ms, 2250 * ms, 3375 * ms}},
		{name: "1s x0.5", policy: Policy{Initial: s, Factor: 0.5}, refuse: "write 1 for a constant delay"},
		{name: "-1s x2", policy: Policy{Initial: -s, Factor: 2}, refuse: "initial delay -1s is negative"},
	}
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	end := time.Date(9999, 1, 1, 0, 0, 0, 0, time.UTC)
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			err := tt.policy.Validate()
			if tt.refuse != "" {
				if !errors.Is(err, ErrInvalid) || !strings.Contains(err.Error(), tt.refuse) {
					t.Fatalf("Validate: %v; want an ErrInvalid with %q", err, tt.refuse)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			rnd := rand.New(rand.NewPCG(1, 2))
			var first []time.Duration
			last := time.Duration(0)
			for attempt := 1; attempt <= 2000; attempt++ {
				c := tt.policy.Ceiling(attempt)
				if attempt <= len(tt.first) {
					first = append(first, c)
				}
				if c <= 0 || c < last || c > tt.cap {
					t.Fatalf("attempt %d: ceiling %v after %v, cap %v", attempt, c, last, tt.cap)
				}
				last = c
				for _, u := range []uint64{0, 1, rnd.Uint64(), rnd.Uint64(), math.MaxUint64} {
					d := tt.policy.Delay(attempt, u)
					if d < MinDelay || d > c {
						t.Fatalf("attempt %d, bits %d: delay %v, ceiling %v", attempt, u, d, c)
					}
					if due := now.Add(d); !due.After(now) || !due.Before(end) {
						t.Fatalf("attempt %d, bits %d: due at %v", attempt, u, due)
					}
				}
			}
			if last != tt.cap {
				t.Errorf("ceiling ended at %v, want the cap %v", last, tt.cap)
			}
			if diff := cmp.Diff(tt.first, first); diff != "" {
				t.Errorf("first ceilings (-want +got):\n%s", diff)
			}
		})
	}
}

func TestWithDefaults(t *testing.T) {
	tests := []struct {
		name     string
		in, want Policy
	}{
		{"zero", Policy{}, Policy{Initial: time.Second, Factor: 2, Max: time.Hour}},
		{"initial above the default max", Policy{Initial: 3 * time.Hour},
			Policy{Initial: 3 * time.Hour, Factor: 2, Max: 3 * time.Hour}},
		{"set values stay", Policy{Initial: 20 * time.Millisecond, Factor: 1, Max: time.Minute, Attempts: 3, Total: time.Hour},
			Policy{Initial: 20 * time.Millisecond, Factor: 1, Max: time.Minute, Attempts: 3, Total: time.Hour}},
		{"invalid values stay, to be refused", Policy{Initial: -1, Factor: -1, Max: -1}, Policy{Initial: -1, Factor: -1, Max: -1}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if diff := cmp.Diff(tt.want, tt.in.WithDefaults()); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(tt.want, tt.in.WithDefaults().WithDefaults()); diff != "" {
				t.Errorf("twice (-want +got):\n%s", diff)
			}
		})
	}
}

func TestValidate(t *testing.T) {
	tests := []struct {
		name   string
		policy Policy
		want   []string // the messages, whole, without the sentinel; none if valid
	}{
		{"zero", Policy{}, nil},
		{"all at their upper limits", Policy{Initial: MaxDelay, Max: MaxDelay, Factor: math.MaxFloat64, Attempts: MaxAttempts, Total: MaxTotal}, nil},
		{"all at their lower limits", Policy{Initial: MinDelay, Max: MinDelay, Factor: 1, Attempts: 1, Total: 1}, nil},
		{"initial above the default max, no max", Policy{Initial: 2 * time.Hour}, nil},
		{"max above the default", Policy{Max: 48 * time.Hour}, nil},

		{"initial negative", Policy{Initial: -time.Second},
			[]string{"initial delay -1s is negative: write 10ms to 720h0m0s, or leave it out for 1s"}},
		{"initial most negative", Policy{Initial: math.MinInt64},
			[]string{"initial delay -2562047h47m16.854775808s is negative: write 10ms to 720h0m0s, or leave it out for 1s"}},
		{"initial below the floor", Policy{Initial: MinDelay - 1},
			[]string{"initial delay 9.999999ms is below the floor: write at least 10ms, or leave it out for 1s"}},
		{"initial above the limit", Policy{Initial: MaxDelay + 1},
			[]string{"initial delay 720h0m0.000000001s is above the limit: write at most 720h0m0s"}},
		{"max negative", Policy{Max: -1},
			[]string{"maximum delay -1ns is negative: write 10ms to 720h0m0s, or leave it out for 1h0m0s"}},
		{"max below the floor", Policy{Initial: MinDelay, Max: 1},
			[]string{"maximum delay 1ns is below the floor: write at least 10ms, or leave it out for 1h0m0s"}},
		{"max above the limit", Policy{Max: MaxDelay + 1},
			[]string{"maximum delay 720h0m0.000000001s is above the limit: write at most 720h0m0s"}},
		{"max below initial", Policy{Initial: 2 * time.Second, Max: time.Second},
			[]string{"maximum delay 1s is below the initial delay 2s: write a maximum of at least 2s, or leave it out for 1h0m0s"}},
		{"max below the default initial", Policy{Max: 500 * time.Millisecond},
			[]string{"maximum delay 500ms is below the default initial delay 1s: write an initial delay of at most 500ms, or a maximum of at least 1s"}},
		{"factor below 1", Policy{Factor: 0.999},
			[]string{"factor 0.999 would shrink the delay: write 1 for a constant delay, more to let it grow, or leave it out for 2"}},
		{"factor negative", Policy{Factor: -2},
			[]string{"factor -2 would shrink the delay: write 1 for a constant delay, more to let it grow, or leave it out for 2"}},
		{"factor not a number", Policy{Factor: math.NaN()},
			[]string{"factor NaN is not a number to grow by: write a finite one of 1 or more, or leave it out for 2"}},
		{"factor infinite", Policy{Factor: math.Inf(1)},
			[]string{"factor +Inf is not a number to grow by: write a finite one of 1 or more, or leave it out for 2"}},
		{"factor infinite and negative", Policy{Factor: math.Inf(-1)},
			[]string{"factor -Inf is not a number to grow by: write a finite one of 1 or more, or leave it out for 2"}},
		{"attempts negative", Policy{Attempts: -1},
			[]string{"attempts -1 is negative: write how many attempts to make in all, or 0 for no limit"}},
		{"attempts above the limit", Policy{Attempts: MaxAttempts + 1},
			[]string{"attempts 1000001 is above the limit: write at most 1000000, or 0 for no limit"}},
		{"total negative", Policy{Total: -time.Minute},
			[]string{"total time -1m0s is negative: write how long to try in all, or 0 for no limit"}},
		{"total above the limit", Policy{Total: math.MaxInt64},
			[]string{"total time 2562047h47m16.854775807s is above the limit: write at most 87600h0m0s, or 0 for no limit"}},
		{"everything at once is told at once", Policy{Initial: -1, Max: -1, Factor: 0.5, Attempts: -1, Total: -1}, []string{
			"initial delay -1ns is negative: write 10ms to 720h0m0s, or leave it out for 1s",
			"maximum delay -1ns is negative: write 10ms to 720h0m0s, or leave it out for 1h0m0s",
			"factor 0.5 would shrink the delay: write 1 for a constant delay, more to let it grow, or leave it out for 2",
			"attempts -1 is negative: write how many attempts to make in all, or 0 for no limit",
			"total time -1ns is negative: write how long to try in all, or 0 for no limit",
		}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			var got []string
			err := tt.policy.Validate()
			if err != nil {
				if !errors.Is(err, ErrInvalid) {
					t.Errorf("%v doesn't wrap ErrInvalid", err)
				}
				for line := range strings.SplitSeq(err.Error(), "\n") {
					got = append(got, strings.TrimPrefix(line, "invalid retry policy: "))
				}
			}
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

func TestDelaySpread(t *testing.T) {
	p := Policy{Initial: time.Second, Factor: 2}
	type point struct {
		attempt int
		u       uint64
		want    time.Duration
	}
	for _, tt := range []point{
		{1, 0, MinDelay},
		{1, math.MaxUint64, time.Second},
		{1, 1 << 63, 505 * time.Millisecond}, // the middle of 10ms and 1s
		{3, math.MaxUint64, 4 * time.Second},
		{3, 0, MinDelay},
		{math.MaxInt, math.MaxUint64, time.Hour},
		{0, math.MaxUint64, time.Second},
		{math.MinInt, math.MaxUint64, time.Second},
	} {
		if got := p.Delay(tt.attempt, tt.u); got != tt.want {
			t.Errorf("Delay(%d, %d) = %v, want %v", tt.attempt, tt.u, got, tt.want)
		}
	}
	// Full jitter is even: each tenth of the range gets about a tenth of the draws. (A fixed seed, so
	// this either always holds or never.)
	rnd := rand.New(rand.NewPCG(3, 4))
	var tenths [10]int
	const draws = 100_000
	for range draws {
		d := p.Delay(1, rnd.Uint64())
		tenths[min(9, int((d-MinDelay)*10/(time.Second-MinDelay)))]++
	}
	for i, n := range tenths {
		if n < draws/10*95/100 || n > draws/10*105/100 {
			t.Errorf("tenth %d got %d of %d draws", i, n, draws)
		}
	}
}

func TestExhausted(t *testing.T) {
	tests := []struct {
		name     string
		policy   Policy
		attempts int
		elapsed  time.Duration
		want     bool
	}{
		{"unlimited", Policy{}, math.MaxInt, math.MaxInt64, false},
		{"one below attempts", Policy{Attempts: 3}, 2, math.MaxInt64, false},
		{"at attempts", Policy{Attempts: 3}, 3, 0, true},
		{"past attempts", Policy{Attempts: 3}, 4, 0, true},
		{"no retry", Policy{Attempts: 1}, 1, 0, true},
		{"nothing tried yet", Policy{Attempts: 1, Total: time.Second}, 0, 0, false},
		{"just before total", Policy{Total: time.Minute}, math.MaxInt, time.Minute - 1, false},
		{"at total", Policy{Total: time.Minute}, 1, time.Minute, true},
		{"either limit: total", Policy{Attempts: 3, Total: time.Minute}, 1, time.Hour, true},
		{"either limit: attempts", Policy{Attempts: 3, Total: time.Minute}, 3, time.Second, true},
		{"a clock set back", Policy{Total: time.Minute}, 1, -time.Hour, false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if got := tt.policy.Exhausted(tt.attempts, tt.elapsed); got != tt.want {
				t.Errorf("got %v, want %v", got, tt.want)
			}
		})
	}
}

func TestGrowthEnds(t *testing.T) {
	// A factor this near to 1 must neither fall nor cost more work with the attempt count.
	p := Policy{Initial: time.Second, Factor: math.Nextafter(1, 2), Max: time.Hour}
	for _, attempt := range []int{1, 2, growthAttemptsMax, math.MaxInt} {
		if got := p.Ceiling(attempt); got != time.Second {
			t.Errorf("Ceiling(%d) = %v, want 1s", attempt, got)
		}
	}
}

func TestCeilingOfRefusedPolicies(t *testing.T) {
	for _, tt := range []struct {
		policy  Policy
		attempt int
		want    time.Duration
	}{
		{Policy{Initial: math.MaxInt64}, 1, MaxDelay},
		{Policy{Max: math.MaxInt64}, math.MaxInt, MaxDelay},
		{Policy{Initial: math.MinInt64, Factor: 1}, 1, MinDelay},
		{Policy{Max: math.MinInt64}, 5, MinDelay},
		{Policy{Initial: time.Minute, Max: time.Second}, 1, time.Second},
		{Policy{Factor: math.NaN()}, 5, time.Second},
		{Policy{Factor: 0.5}, 5, time.Second},
		{Policy{Factor: math.Inf(1)}, 2, time.Hour},
	} {
		if got := tt.policy.Ceiling(tt.attempt); got != tt.want {
			t.Errorf("%+v: Ceiling(%d) = %v, want %v", tt.policy, tt.attempt, got, tt.want)
		}
	}
}

// drawAttempt favours the small counts and the ends of the range.
func drawAttempt(t *rapid.T) int {
	return rapid.OneOf(
		rapid.IntRange(1, 100),
		rapid.IntRange(1, 20_000),
		rapid.IntRange(1, math.MaxInt),
		rapid.Just(math.MaxInt),
	).Draw(t, "attempt")
}

func drawValid(t *rapid.T) Policy {
	p := Policy{
		Initial:  time.Duration(rapid.OneOf(rapid.Just(int64(0)), rapid.Int64Range(int64(MinDelay), int64(MaxDelay))).Draw(t, "initial")),
		Factor:   rapid.OneOf(rapid.Just(0.0), rapid.Just(1.0), rapid.Float64Range(1, 1.01), rapid.Float64Range(1, 10), rapid.Float64Range(1, math.MaxFloat64)).Draw(t, "factor"),
		Attempts: rapid.IntRange(0, MaxAttempts).Draw(t, "attempts"),
		Total:    time.Duration(rapid.Int64Range(0, int64(MaxTotal)).Draw(t, "total")),
	}
	if rapid.Bool().Draw(t, "has max") {
		p.Max = time.Duration(rapid.Int64Range(int64(p.WithDefaults().Initial), int64(MaxDelay)).Draw(t, "max"))
	}
	return p
}

func TestValidPolicyProperty(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p := drawValid(t)
		if err := p.Validate(); err != nil {
			t.Fatal(err)
		}
		d := p.WithDefaults()
		if err := d.Validate(); err != nil {
			t.Fatalf("with defaults: %v", err)
		}
		if got := p.Ceiling(1); got != d.Initial {
			t.Fatalf("Ceiling(1) = %v, want the initial %v", got, d.Initial)
		}
		attempt := drawAttempt(t)
		later := attempt + rapid.IntRange(0, min(math.MaxInt-attempt, 3)).Draw(t, "later")
		c := p.Ceiling(attempt)
		if c != d.Ceiling(attempt) {
			t.Fatalf("defaults change the ceiling: %v, %v", c, d.Ceiling(attempt))
		}
		if c < d.Initial || c > d.Max || c > MaxDelay {
			t.Fatalf("Ceiling(%d) = %v, outside %v to %v", attempt, c, d.Initial, d.Max)
		}
		if next := p.Ceiling(later); next < c {
			t.Fatalf("Ceiling falls from %v at %d to %v at %d", c, attempt, next, later)
		}
		// Within a millionth of the exact curve, where growth has not ended.
		if attempt <= growthAttemptsMax {
			exact := math.Min(float64(d.Initial)*math.Pow(d.Factor, float64(attempt-1)), float64(d.Max))
			if math.Abs(float64(c)-exact) > exact*1e-6+1 {
				t.Fatalf("Ceiling(%d) = %v, want %v", attempt, c, time.Duration(exact))
			}
		}
		u, v := rapid.Uint64().Draw(t, "u"), rapid.Uint64().Draw(t, "v")
		du, dv := p.Delay(attempt, u), p.Delay(attempt, v)
		if du < MinDelay || du > c {
			t.Fatalf("Delay(%d, %d) = %v, outside %v to %v", attempt, u, du, MinDelay, c)
		}
		if u < v && du > dv || u > v && du < dv {
			t.Fatalf("Delay doesn't follow its bits: %d gives %v, %d gives %v", u, du, v, dv)
		}
	})
}

// Even a policy that Validate refuses gets delays that neither spin nor overflow.
func TestAnyPolicyProperty(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p := Policy{
			Initial: time.Duration(rapid.Int64().Draw(t, "initial")),
			Max:     time.Duration(rapid.Int64().Draw(t, "max")),
			Factor: rapid.OneOf(rapid.Float64(), rapid.SampledFrom([]float64{
				math.NaN(), math.Inf(1), math.Inf(-1), 0, -1, 0.5})).Draw(t, "factor"),
		}
		attempt := rapid.OneOf(rapid.Int(), rapid.IntRange(1, 100)).Draw(t, "attempt")
		c := p.Ceiling(attempt)
		if c < MinDelay || c > MaxDelay {
			t.Fatalf("Ceiling(%d) = %v", attempt, c)
		}
		if attempt < math.MaxInt && p.Ceiling(attempt+1) < c {
			t.Fatalf("Ceiling falls after %d", attempt)
		}
		if d := p.Delay(attempt, rapid.Uint64().Draw(t, "u")); d < MinDelay || d > c {
			t.Fatalf("Delay(%d) = %v, ceiling %v", attempt, d, c)
		}
	})
}
