package server

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"time"
)

// checkListen refuses to serve an API without authentication to others than this machine, unless told to.
func checkListen(address string, allowUnauthenticated bool) error {
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		return fmt.Errorf("listen address %q: use host:port, for example 127.0.0.1:7230: %w", address, err)
	}
	if allowUnauthenticated || loopback(host) {
		return nil
	}
	return fmt.Errorf("refusing to listen on %s: this API has no authentication yet, so whoever reaches the address could start, "+
		"cancel and settle sagas. Listen on 127.0.0.1 and put a proxy that authenticates in front of it, or, if the network "+
		"lets only trusted callers through, say so with --allow-unauthenticated", address)
}

// loopback says that only this machine reaches host. The empty host is every interface.
func loopback(host string) bool {
	if strings.EqualFold(host, "localhost") {
		return true
	}
	addr, err := netip.ParseAddr(host)
	return err == nil && addr.Unmap().IsLoopback()
}

// secure surrounds all of the port: it refuses what a browser on a foreign page could send, and sets the headers that
// keep a browser from making anything of an answer.
func secure(cfg *Config, next http.Handler) http.Handler {
	cross := http.NewCrossOriginProtection()
	cross.SetDenyHandler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		http.Error(w, "refused: a request from another site. Call the API from its own origin, or without a browser", http.StatusForbidden)
	}))
	protected := cross.Handler(http.MaxBytesHandler(next, bodyBytesMax))
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h := w.Header()
		h.Set("X-Content-Type-Options", "nosniff")
		h.Set("Referrer-Policy", "no-referrer")
		h.Set("X-Frame-Options", "DENY")
		h.Set("Cross-Origin-Opener-Policy", "same-origin")
		h.Set("Cross-Origin-Resource-Policy", "same-origin")
		h.Set("Content-Security-Policy", contentPolicy)
		h.Set("Cache-Control", "no-store")
		if !hostAllowed(cfg, r) {
			// A page of another site whose name was made to point here (DNS rebinding) comes with that name.
			http.Error(w, "refused: this server doesn't go by that host name. Use 127.0.0.1 or localhost, or add the name with --allow-host", http.StatusMisdirectedRequest)
			return
		}
		if r.Body != nil && r.Body != http.NoBody {
			// In a copy: net/http must find its own body in the request to know that a handler left something of it, and to close the
			// connection then. Otherwise the rest is taken for the next request.
			paced := *r
			paced.Body = &pacedBody{ReadCloser: r.Body, control: http.NewResponseController(w)}
			r = &paced
		}
		if r.ProtoMajor == 1 {
			paced := &pacedWriter{ResponseWriter: w, control: http.NewResponseController(w)}
			// What the handler left in buffers is written after it has returned.
			defer paced.arm()
			w = paced
		}
		protected.ServeHTTP(w, r)
	})
}

// contentPolicy is for the operations UI; API answers aren't documents, so it does them no harm.
const contentPolicy = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; " +
	"font-src 'self'; frame-ancestors 'none'; base-uri 'none'; form-action 'self'"

// hostAllowed checks the name that the request was sent to, on connections that came in over loopback: there a browser
// on this machine can be made to send what its user never asked for.
func hostAllowed(cfg *Config, r *http.Request) bool {
	local, ok := r.Context().Value(http.LocalAddrContextKey).(net.Addr)
	if !ok {
		return true
	}
	if host, _, err := net.SplitHostPort(local.String()); err != nil || !loopback(host) {
		return true
	}
	host := r.Host
	if h, _, err := net.SplitHostPort(host); err == nil {
		host = h
	}
	host = strings.TrimSuffix(strings.Trim(host, "[]"), ".")
	if loopback(host) {
		return true
	}
	for _, allowed := range cfg.AllowedHosts {
		if strings.EqualFold(host, allowed) {
			return true
		}
	}
	return false
}

// pacedBody ends a request whose body pauses too long. A deadline for the whole request would end watches too.
type pacedBody struct {
	io.ReadCloser
	control *http.ResponseController
	armed   time.Time
	ended   bool
}

func (b *pacedBody) Read(p []byte) (int, error) {
	// Setting a deadline costs a little: not for each of many small reads.
	if now := time.Now(); !b.ended && now.Sub(b.armed) > readBodyTimeout/10 {
		b.armed = now
		_ = b.control.SetReadDeadline(now.Add(readBodyTimeout))
	}
	n, err := b.ReadCloser.Read(p)
	if err != nil && !b.ended {
		b.ended = true
		if errors.Is(err, io.EOF) {
			_ = b.control.SetReadDeadline(time.Time{})
		}
	}
	return n, err
}

// pacedWriter ends an answer that its reader doesn't take. It is for HTTP/1: in HTTP/2 a deadline ends a stream even when
// nothing waits to be written, and the server has a timeout of its own.
type pacedWriter struct {
	http.ResponseWriter
	control *http.ResponseController
}

func (w *pacedWriter) arm() { _ = w.control.SetWriteDeadline(time.Now().Add(writeTimeout)) }

func (w *pacedWriter) Write(p []byte) (int, error) {
	w.arm()
	return w.ResponseWriter.Write(p)
}

// FlushError is how a response controller flushes.
func (w *pacedWriter) FlushError() error {
	w.arm()
	return w.control.Flush()
}

// Flush implements http.Flusher.
func (w *pacedWriter) Flush() { _ = w.FlushError() }

// Unwrap lets a response controller through.
func (w *pacedWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }
