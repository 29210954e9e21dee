package mgmt

import (
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

// startModeration serves with a function that knows device net0 and engine off.
func startModeration(t *testing.T) (*Client, *[]string) {
	t.Helper()
	var calls []string
	a := unixAddr(t, "api")
	l, err := Listen(a)
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	s := New(Options{SetModeration: func(device string, queue int, engine string) error {
		switch {
		case device != "net0":
			return fmt.Errorf("%w: %q", ErrNoDevice, device)
		case engine != "off":
			return fmt.Errorf("%w: engine %q", ErrValue, engine)
		case queue > 3:
			return errors.New("the device ends")
		}
		calls = append(calls, fmt.Sprint(device, queue, engine))
		return nil
	}})
	go func() { done <- s.Serve(t.Context(), l) }()
	t.Cleanup(func() { <-done })
	c, err := NewClient(a)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c, &calls
}

func TestSetModeration(t *testing.T) {
	c, calls := startModeration(t)
	for _, q := range []int{0, 3} {
		if err := c.SetModeration(t.Context(), "net0", q, "off"); err != nil {
			t.Fatal(err)
		}
	}
	if got := fmt.Sprint(*calls); got != "[net00off net03off]" {
		t.Errorf("calls %s", got)
	}
	for _, tt := range []struct {
		device, engine string
		queue, status  int
	}{
		{"net1", "off", 0, http.StatusNotFound},
		{"net0", "on", 0, http.StatusBadRequest},
		{"net0", "off", -1, http.StatusBadRequest},
		{"net0", "off", 4, http.StatusInternalServerError},
	} {
		var se *StatusError
		err := c.SetModeration(t.Context(), tt.device, tt.queue, tt.engine)
		if !errors.As(err, &se) || se.Status != tt.status || se.Message == "" {
			t.Errorf("%+v: %v", tt, err)
		}
	}
}

func TestModerationBodies(t *testing.T) {
	c, calls := startModeration(t)
	for body, status := range map[string]int{
		``:                                  400,
		`null x`:                            400,
		`{"engine":1}`:                      400,
		`{"motor":"off"}`:                   400,
		`{"engine":"off"}{`:                 400,
		strings.Repeat(" ", maxBody) + `{}`: 400,
		` {"engine":"off"} ` + "\n":         200,
	} {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPut,
			"http://vhostnet/v1/devices/net0/queues/0/moderation", strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		resp, err := c.http.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		if _ = resp.Body.Close(); resp.StatusCode != status {
			t.Errorf("%.30q: status %d, want %d", body, resp.StatusCode, status)
		}
	}
	if len(*calls) != 1 {
		t.Errorf("calls %v", *calls)
	}
}

// A guest that reaches the API over AF_VSOCK does not choose the host's engines;
// neither does anybody where nothing can be set.
func TestModerationIsRefused(t *testing.T) {
	const path = "/v1/devices/net0/queues/0/moderation"
	set := func(string, int, string) error { t.Error("it was set"); return nil }
	for name, tt := range map[string]struct {
		o      Options
		method string
		status int
	}{
		"not local": {Options{SetModeration: set}, http.MethodPut, http.StatusForbidden},
		"read-only": {Options{}, http.MethodPut, http.StatusNotFound},
		"method":    {Options{SetModeration: set}, http.MethodPost, http.StatusMethodNotAllowed},
		"get":       {Options{SetModeration: set}, http.MethodGet, http.StatusMethodNotAllowed},
	} {
		w := httptest.NewRecorder()
		New(tt.o).ServeHTTP(w, httptest.NewRequest(tt.method, path, strings.NewReader(`{"engine":"off"}`)))
		if w.Code != tt.status {
			t.Errorf("%s: status %d, want %d", name, w.Code, tt.status)
		}
	}
}
