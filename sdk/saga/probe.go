package saga

// ProbeAnswer is what a probe answers: whether an action happened. The zero value is that it can't be told.
type ProbeAnswer[Out any] struct {
	finding Finding
	output  *Out
	why     string
}

// Finding is what a probe found.
type Finding uint8

// The findings.
const (
	Untold Finding = iota
	Occurred
	Absent
)

// Happened answers that the action happened, and with what output.
func Happened[Out any](output Out) ProbeAnswer[Out] {
	return ProbeAnswer[Out]{finding: Occurred, output: &output}
}

// HappenedUnknownOutput answers that the action happened, and that its output can't be known any more.
func HappenedUnknownOutput[Out any]() ProbeAnswer[Out] { return ProbeAnswer[Out]{finding: Occurred} }

// DidNotHappen answers that the action did not happen, and never will under this key: not even if a call that is on its way
// arrives later. Who can only say that it hasn't happened yet answers with [CantTell].
func DidNotHappen[Out any]() ProbeAnswer[Out] { return ProbeAnswer[Out]{finding: Absent} }

// CantTell answers that it can't be told, for people why not.
func CantTell[Out any](why string) ProbeAnswer[Out] { return ProbeAnswer[Out]{why: why} }

// Finding takes the answer apart. Output is nil if it isn't known.
func (a ProbeAnswer[Out]) Finding() (f Finding, output *Out, why string) {
	return a.finding, a.output, a.why
}
