package qemutest

import (
	"context"
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/vhostnet/vhostnet/qemu-test/provision"
)

// What every test uses, made once.
var (
	assets  *provision.Assets
	agent   string
	workDir string
)

func TestMain(m *testing.M) {
	code, err := run(m)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

func run(m *testing.M) (int, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	defer cancel()
	if os.Geteuid() != 0 {
		return 1, fmt.Errorf("the guest tests need root for network and mount namespaces: sudo go test ./qemu-test/")
	}
	dir, err := os.MkdirTemp("", "vhostnet-qemu-test-")
	if err != nil {
		return 1, err
	}
	defer os.RemoveAll(dir)
	workDir = dir
	assets, err = provision.Ensure(ctx, provision.Options{
		Log: func(format string, args ...any) { fmt.Fprintf(os.Stderr, format+"\n", args...) },
	})
	if err != nil {
		return 1, err
	}
	if agent, err = BuildAgent(ctx, dir); err != nil {
		return 1, err
	}
	return m.Run(), nil
}

// limit bounds a test's guest work.
func limit(t *testing.T, d time.Duration) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeoutCause(t.Context(), d, fmt.Errorf("no end after %v", d))
	t.Cleanup(cancel)
	return ctx
}

// boot starts a guest that ends with the test and shows its console if the test
// failed.
func boot(t *testing.T, ctx context.Context, c Config) *Guest {
	t.Helper()
	if c.Dir == "" {
		c.Dir = t.TempDir()
	}
	c.Assets, c.Agent = assets, agent
	g, err := Boot(ctx, c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		g.Close()
		if t.Failed() {
			t.Logf("console:\n%s\nVMM:\n%s", g.Console.Tail(60), g.Stderr.Tail(20))
		}
	})
	t.Logf("%v guest up after %.1f s", c.Lane, g.BootTime.Seconds())
	return g
}

// must runs a script in the guest that has to succeed and returns its output.
func must(t *testing.T, ctx context.Context, g *Guest, script string) string {
	t.Helper()
	r, err := g.Run(ctx, script)
	if err != nil {
		t.Fatal(err)
	}
	if r.Exit != 0 {
		t.Fatalf("%q: exit status %d\n%s", script, r.Exit, r.Output)
	}
	return r.Output
}
