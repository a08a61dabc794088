package sagatest

// signal sends a signal to the saga.
func (r *rig) signal(x signal) {
	r.note("signal %s is sent", x.name)
}
