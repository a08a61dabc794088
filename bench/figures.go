package main

import "slices"

// figures are what one run, or the median of several, says of a system. Per saga means per saga that ended within the measured time.
type figures struct {
	System   string  `json:"system"`
	Store    string  `json:"store"`
	Part     string  `json:"part"`
	Via      string  `json:"via,omitempty"`
	InFlight int     `json:"inflight"` // 0 in an open loop
	Rate     float64 `json:"rate"`     // 0 in a closed loop
	Runs     int     `json:"runs"`

	Sagas     float64 `json:"sagas"`
	PerSecond float64 `json:"per_second"`
	P50ms     float64 `json:"p50_ms"`
	P99ms     float64 `json:"p99_ms"`
	// CPUms is processor time per saga in milliseconds, by process: engine (with load and NATS server), worker, postgres;
	// the peer is one process.
	CPUms map[string]float64 `json:"cpu_ms_per_saga"`
	// LogBytes of Postgres per saga.
	LogBytes float64 `json:"log_bytes_per_saga"`
	// Commits of the engine per saga, by its own count.
	Commits float64 `json:"commits_per_saga"`
	// Transactions of Postgres per saga, by its count, which is up to a second late.
	Transactions float64 `json:"transactions_per_saga"`
	// Others is how many processors something else kept busy meanwhile: above some tenths the run is disturbed.
	Others float64 `json:"others_cpus"`
}

// cpu is the sum over all processes.
func (f figures) cpu() (sum float64) {
	for _, v := range f.CPUms {
		sum += v
	}
	return sum
}

// processes in the order in which they are shown.
var processes = []string{"engine", "peer", "worker", "postgres"}

// middle takes each figure's median. There must be runs.
func middle(runs []figures) figures {
	m := runs[0]
	m.Runs = len(runs)
	of := func(get func(*figures) float64) float64 {
		var all []float64
		for i := range runs {
			all = append(all, get(&runs[i]))
		}
		return median(all)
	}
	m.Sagas = of(func(f *figures) float64 { return f.Sagas })
	m.PerSecond = of(func(f *figures) float64 { return f.PerSecond })
	m.P50ms = of(func(f *figures) float64 { return f.P50ms })
	m.P99ms = of(func(f *figures) float64 { return f.P99ms })
	m.LogBytes = of(func(f *figures) float64 { return f.LogBytes })
	m.Commits = of(func(f *figures) float64 { return f.Commits })
	m.Transactions = of(func(f *figures) float64 { return f.Transactions })
	m.Others = of(func(f *figures) float64 { return f.Others })
	m.CPUms = map[string]float64{}
	for p := range runs[0].CPUms {
		m.CPUms[p] = of(func(f *figures) float64 { return f.CPUms[p] })
	}
	return m
}

// median of numbers; of an even count the middle between two.
func median(all []float64) float64 {
	slices.Sort(all)
	n := len(all)
	return (all[(n-1)/2] + all[n/2]) / 2
}
