package mgmt

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"path"
	"time"

	"github.com/vhostnet/vhostnet/netdev"
)

// Bounds of one connection. Requests fit in a page and their bodies, if any, in
// another; the answers for the largest device are some hundred kilobytes.
const (
	maxHeaderBytes = 4 << 10
	headerTimeout  = 5 * time.Second
	requestTimeout = 10 * time.Second
	idleTimeout    = 30 * time.Second
	// closeTimeout is for requests that are under way when the server closes.
	// The whole process has 2 s to end.
	closeTimeout = 500 * time.Millisecond
)

// VersionInfo is the answer of GET /v1/version.
type VersionInfo struct {
	// Version is the module's version, "devel" when built from a work tree.
	Version string `json:"version"`
	// Revision is the commit, Modified tells that the tree had changes, Time is
	// the commit's in RFC 3339; empty when unknown.
	Revision string `json:"revision,omitempty"`
	Time     string `json:"time,omitempty"`
	Modified bool   `json:"modified,omitempty"`
	// Go is the toolchain's version.
	Go string `json:"go"`
}

// ErrorInfo is the body of every answer that is not 200.
type ErrorInfo struct {
	// Error says what is wrong, in one line.
	Error string `json:"error"`
	// Status repeats the HTTP status.
	Status int `json:"status"`
}

// DeviceList is the answer of GET /v1/devices.
type DeviceList struct {
	Devices []netdev.DeviceSnapshot `json:"devices"`
}

// Options are what a server reports.
type Options struct {
	// Devices returns a snapshot of every device. It is called from several
	// goroutines at once.
	Devices func() []netdev.DeviceSnapshot
	// Version is reported as it is.
	Version VersionInfo
	// SetModeration changes the host's moderation engine of a device's virtqueue;
	// nil makes the API read-only. Its errors wrap ErrNoDevice or ErrValue where
	// the request is at fault.
	SetModeration func(device string, queue int, engine string) error
	// AddDevice adds the device that a JSON object describes and returns its name;
	// RemoveDevice removes one and returns when it is gone. Both are nil where the
	// devices are fixed. Their errors wrap ErrValue, ErrExists or ErrNoDevice where
	// the request is at fault.
	AddDevice    func(object []byte) (name string, err error)
	RemoveDevice func(name string) error
	// Log receives the server's few messages; nil discards them.
	Log *slog.Logger
}

// Server answers requests on any number of listeners.
type Server struct {
	opts Options
	mux  *http.ServeMux
}

// New makes a server; it listens nowhere before Serve.
func New(o Options) *Server {
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.Devices == nil {
		o.Devices = func() []netdev.DeviceSnapshot { return nil }
	}
	s := &Server{opts: o, mux: http.NewServeMux()}
	for path, h := range map[string]http.HandlerFunc{
		"/v1/devices":        s.devices,
		"/v1/devices/{name}": s.device,
		"/v1/version":        s.version,
	} {
		s.mux.HandleFunc("GET "+path, h) // and HEAD
		allowed := "GET, HEAD"
		switch {
		case path == "/v1/devices" && o.AddDevice != nil:
			s.mux.HandleFunc("POST "+path, s.addDevice)
			allowed += ", POST"
		case path == "/v1/devices/{name}" && o.RemoveDevice != nil:
			s.mux.HandleFunc("DELETE "+path, s.removeDevice)
			allowed += ", DELETE"
		}
		s.mux.HandleFunc(path, methodNotAllowed(allowed))
	}
	s.mux.HandleFunc("PUT "+moderationPath, s.moderation)
	s.mux.HandleFunc(moderationPath, methodNotAllowed(http.MethodPut))
	s.mux.HandleFunc("/", notFound)
	return s
}

// ServeHTTP answers one request.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	// The mux would send a client with "//" or ".." in its path elsewhere.
	if p := r.URL.EscapedPath(); path.Clean(p) != p && p != "" {
		notFound(w, r)
		return
	}
	s.mux.ServeHTTP(w, r)
}

// Serve answers on the listeners until ctx ends or a listener fails, and closes
// them in any case. Requests that are under way get 500 ms to finish. It
// returns nil after ctx has ended.
func (s *Server) Serve(ctx context.Context, listeners ...net.Listener) error {
	srv := &http.Server{
		Handler:           s,
		ReadHeaderTimeout: headerTimeout,
		ReadTimeout:       requestTimeout,
		WriteTimeout:      requestTimeout,
		IdleTimeout:       idleTimeout,
		MaxHeaderBytes:    maxHeaderBytes,
		ConnContext:       markLocal,
		ErrorLog:          slog.NewLogLogger(s.opts.Log.Handler(), slog.LevelDebug),
	}
	done := make(chan error, len(listeners))
	for _, l := range listeners {
		s.opts.Log.Info("status API listens", "address", addrText(l.Addr()))
		go func() { done <- srv.Serve(l) }()
	}
	running := len(listeners)
	var failed error
	select {
	case <-ctx.Done():
	case failed = <-done:
		running--
	}
	grace, cancel := context.WithTimeout(context.Background(), closeTimeout)
	defer cancel()
	if err := srv.Shutdown(grace); err != nil {
		_ = srv.Close()
	}
	for ; running > 0; running-- {
		<-done
	}
	// A server that was shut down before its goroutine ran has not seen the
	// listener; closing twice does no harm.
	for _, l := range listeners {
		_ = l.Close()
	}
	if failed != nil && !errors.Is(failed, http.ErrServerClosed) {
		return fmt.Errorf("mgmt: serve: %w", failed)
	}
	return nil
}

func addrText(a net.Addr) string { return a.Network() + ":" + a.String() }

func (s *Server) devices(w http.ResponseWriter, _ *http.Request) {
	list := DeviceList{Devices: s.opts.Devices()}
	if list.Devices == nil {
		list.Devices = []netdev.DeviceSnapshot{}
	}
	reply(w, http.StatusOK, list)
}

func (s *Server) device(w http.ResponseWriter, r *http.Request) {
	name := r.PathValue("name")
	for _, d := range s.opts.Devices() {
		if d.Name == name {
			reply(w, http.StatusOK, d)
			return
		}
	}
	fail(w, http.StatusNotFound, fmt.Sprintf("there is no device %q", name))
}

func (s *Server) version(w http.ResponseWriter, _ *http.Request) {
	reply(w, http.StatusOK, s.opts.Version)
}

func notFound(w http.ResponseWriter, r *http.Request) {
	fail(w, http.StatusNotFound, fmt.Sprintf("there is nothing at %q", r.URL.Path))
}

func methodNotAllowed(allowed string) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Allow", allowed)
		fail(w, http.StatusMethodNotAllowed, fmt.Sprintf("%s is not possible here, only %s", r.Method, allowed))
	}
}

func fail(w http.ResponseWriter, status int, text string) {
	reply(w, status, ErrorInfo{Error: text, Status: status})
}

// reply encodes before it writes the header, so that a failure is not a torn
// answer with status 200.
func reply(w http.ResponseWriter, status int, body any) {
	b, err := json.Marshal(body)
	if err != nil {
		status = http.StatusInternalServerError
		b = []byte(`{"error":"the answer cannot be encoded","status":500}`)
	}
	h := w.Header()
	h.Set("Content-Type", "application/json")
	h.Set("Cache-Control", "no-store")
	w.WriteHeader(status)
	// An error is the peer's: it has hung up.
	_, _ = w.Write(append(b, '\n'))
}
