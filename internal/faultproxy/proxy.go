// Package faultproxy is a TCP proxy that fails on demand: it cuts connections after a given number of bytes, swallows
// everything, or delays. For tests of what is done when an answer never comes.
package faultproxy

import (
	"net"
	"sync"
	"time"
)

// Direction of bytes.
type Direction int

const (
	// Up is from the client to the server.
	Up Direction = iota
	// Down is from the server to the client.
	Down
)

// Proxy forwards connections to one server.
type Proxy struct {
	target   string
	listener net.Listener
	running  sync.WaitGroup

	mu        sync.Mutex
	changed   *sync.Cond
	closed    bool
	pairs     map[*pair]struct{}
	budget    [2]int64 // bytes until the cut, per direction; -1 if none is armed
	cuts      int
	delay     time.Duration
	blackhole bool
}

type pair struct{ ends [2]*net.TCPConn }

// Listen starts a proxy before target, at a loopback port of its own choice.
func Listen(target string) (*Proxy, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	p := &Proxy{target: target, listener: l, pairs: map[*pair]struct{}{}, budget: [2]int64{-1, -1}}
	p.changed = sync.NewCond(&p.mu)
	p.running.Go(p.accept)
	return p, nil
}

// Addr is where clients connect.
func (p *Proxy) Addr() string { return p.listener.Addr().String() }

// CutAfter lets n more bytes pass in a direction, counted over all connections, and then resets all connections, once.
// New connections are forwarded as before. A negative n disarms.
func (p *Proxy) CutAfter(d Direction, n int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.budget[d] = n
}

// Cuts is how many cuts there have been.
func (p *Proxy) Cuts() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.cuts
}

// Blackhole holds all bytes back, without closing anything, until it is switched off again.
func (p *Proxy) Blackhole(on bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.blackhole = on
	p.changed.Broadcast()
}

// Delay holds each piece of data back for a while.
func (p *Proxy) Delay(d time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.delay = d
}

// Reset resets all connections now.
func (p *Proxy) Reset() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.reset()
}

// Close resets all connections and stops.
func (p *Proxy) Close() error {
	p.mu.Lock()
	p.closed = true
	p.changed.Broadcast()
	p.reset()
	p.mu.Unlock()
	err := p.listener.Close()
	p.running.Wait()
	return err
}

func (p *Proxy) reset() {
	for pair := range p.pairs {
		for _, c := range pair.ends {
			_ = c.SetLinger(0) // a reset, not an orderly end
			_ = c.Close()
		}
		delete(p.pairs, pair)
	}
}

func (p *Proxy) accept() {
	for {
		client, err := p.listener.Accept()
		if err != nil {
			return
		}
		server, err := net.Dial("tcp", p.target)
		if err != nil {
			_ = client.Close()
			continue
		}
		pair := &pair{ends: [2]*net.TCPConn{client.(*net.TCPConn), server.(*net.TCPConn)}}
		p.mu.Lock()
		p.pairs[pair] = struct{}{}
		if p.closed {
			p.reset()
		}
		p.mu.Unlock()
		p.running.Go(func() { p.forward(pair, Up) })
		p.running.Go(func() { p.forward(pair, Down) })
	}
}

func (p *Proxy) forward(pair *pair, d Direction) {
	from, to := pair.ends[0], pair.ends[1]
	if d == Down {
		from, to = to, from
	}
	buf := make([]byte, 32<<10)
	for {
		n, err := from.Read(buf)
		if n > 0 {
			pass, cut := p.admit(d, n)
			if _, werr := to.Write(buf[:pass]); werr != nil {
				err = werr
			}
			if cut {
				p.Reset()
				return
			}
		}
		if err != nil {
			// One end is gone: let the other have what is on its way.
			_ = to.CloseWrite()
			p.mu.Lock()
			if d == Down {
				delete(p.pairs, pair)
				_ = from.Close()
				_ = to.Close()
			}
			p.mu.Unlock()
			return
		}
	}
}

// admit says how many of n bytes may pass, and whether to cut then.
func (p *Proxy) admit(d Direction, n int) (pass int, cut bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for p.blackhole && !p.closed {
		p.changed.Wait()
	}
	if delay := p.delay; delay > 0 {
		p.mu.Unlock()
		time.Sleep(delay)
		p.mu.Lock()
	}
	switch left := p.budget[d]; {
	case left < 0:
		return n, false
	case left >= int64(n):
		p.budget[d] -= int64(n)
		return n, false
	default:
		p.budget = [2]int64{-1, -1}
		p.cuts++
		return int(left), true
	}
}
