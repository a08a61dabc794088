package worker

import "time"

const (
	// trialDelay is for how long a trial waits before it begins, so that what came with its task is handed back first.
	trialDelay = 100 * time.Millisecond
	// trialAlone is for how long nothing new begins beside a trial.
	trialAlone = 30 * time.Second
)

// A task that would be given up after one more death may be innocent: what runs in one process shares its deaths. So its last run is a trial:
// nothing new begins beside it, and other tasks that would be on trial too go back to the engine, where their deliveries are counted anew.

// try begins the trial of a job soon. The lock is held.
func (d *desk) try(j *job) {
	d.alone = j
	time.AfterFunc(trialDelay, func() {
		d.mu.Lock()
		if d.closing { // its message is handed back
			delete(d.jobs, attempt{j.task.IdempotencyKey, j.task.Attempt})
			d.mu.Unlock()
			d.endTrial(j)
			return
		}
		d.running++
		j.begun()
		d.mu.Unlock()
		time.AfterFunc(trialAlone, func() { d.endTrial(j) })
		d.work(j)
	})
}

// endTrial lets others begin again, if j is on trial.
func (d *desk) endTrial(j *job) {
	d.mu.Lock()
	if d.alone != j {
		d.mu.Unlock()
		return
	}
	d.alone = nil
	var start []*job
	for d.running < d.w.cfg.Concurrency {
		d.running++
		next := d.next() // without one it takes the hand back
		if next == nil {
			break
		}
		start = append(start, next)
	}
	d.starved = false
	d.mu.Unlock()
	d.start(start)
	d.wake()
}

// start gives jobs to free hands, or to new ones.
func (d *desk) start(jobs []*job) {
	for _, j := range jobs {
		select {
		case d.hands <- j:
		default:
			go d.work(j)
		}
	}
}

// begun notes that a handler is about to be called. The desk's lock is held.
func (j *job) begun() {
	j.for_.held.begin()
	for _, o := range j.others {
		o.held.begin()
	}
}
