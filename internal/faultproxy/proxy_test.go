package faultproxy

import (
	"io"
	"net"
	"testing"
	"time"
)

// echo is a server that sends back what it gets.
func echo(t *testing.T) string {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() { _, _ = io.Copy(c, c); _ = c.Close() }()
		}
	}()
	return l.Addr().String()
}

func dial(t *testing.T, p *Proxy) net.Conn {
	c, err := net.Dial("tcp", p.Addr())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	_ = c.SetDeadline(time.Now().Add(10 * time.Second))
	return c
}

func start(t *testing.T) *Proxy {
	p, err := Listen(echo(t))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = p.Close() })
	return p
}

func TestCutAfter(t *testing.T) {
	p := start(t)
	for _, d := range []Direction{Up, Down} {
		c := dial(t, p)
		p.CutAfter(d, 5)
		if _, err := c.Write([]byte("12345678")); err != nil {
			t.Fatal(err)
		}
		got, err := io.ReadAll(c)
		if err == nil || len(got) > 5 {
			t.Errorf("direction %d: read %q, %v; want at most 5 bytes and a reset", d, got, err)
		}
	}
	if p.Cuts() != 2 {
		t.Errorf("%d cuts, want 2", p.Cuts())
	}
	c := dial(t, p)
	if _, err := c.Write([]byte("again")); err != nil {
		t.Fatal(err)
	}
	if got := make([]byte, 5); true {
		if _, err := io.ReadFull(c, got); err != nil || string(got) != "again" {
			t.Errorf("after the cuts: %q, %v", got, err)
		}
	}
}

func TestBlackhole(t *testing.T) {
	p := start(t)
	c := dial(t, p)
	p.Blackhole(true)
	if _, err := c.Write([]byte("x")); err != nil {
		t.Fatal(err)
	}
	_ = c.SetReadDeadline(time.Now().Add(50 * time.Millisecond))
	if _, err := c.Read(make([]byte, 1)); err == nil {
		t.Fatal("a byte came through")
	}
	p.Blackhole(false)
	_ = c.SetReadDeadline(time.Now().Add(10 * time.Second))
	if _, err := c.Read(make([]byte, 1)); err != nil {
		t.Fatalf("after the blackhole: %v", err)
	}
}

func TestDelay(t *testing.T) {
	p := start(t)
	c := dial(t, p)
	p.Delay(20 * time.Millisecond)
	began := time.Now()
	if _, err := c.Write([]byte("x")); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Read(make([]byte, 1)); err != nil {
		t.Fatal(err)
	}
	if took := time.Since(began); took < 40*time.Millisecond {
		t.Errorf("took %v, want twice the delay at least", took)
	}
}
