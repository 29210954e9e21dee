package provision

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"time"

	"golang.org/x/sys/unix"
)

// recipe is the version of what Ensure builds. A cache made by another recipe
// is rebuilt.
const recipe = 8

// EnvCache names the environment variable that overrides the cache folder.
const EnvCache = "VHOSTNET_CACHE"

// QEMU is one unpacked QEMU with the libraries it was built against.
type QEMU struct {
	// Version is the Debian package version.
	Version string `json:"version"`
	// Prefix is the folder the packages were unpacked into.
	Prefix string `json:"prefix"`
	// TestDevice tells whether it has vhost-user-test-device-pci.
	TestDevice bool `json:"test_device"`
	// ReconnectMS tells whether socket chardevs take reconnect-ms (in
	// milliseconds) and not only reconnect (in seconds).
	ReconnectMS bool `json:"reconnect_ms"`
}

// Assets says where everything is. All paths are absolute.
type Assets struct {
	Recipe int `json:"recipe"`
	// Cache is the folder that holds all of it.
	Cache string `json:"cache"`
	// QEMU is the current QEMU, which has the generic vhost-user device.
	QEMU QEMU `json:"qemu"`
	// OldQEMU is an older one, for the reach of `-netdev vhost-user`.
	OldQEMU QEMU `json:"old_qemu"`
	// Kernel is what QEMU boots: an uncompressed vmlinux, or a bzImage where the
	// payload could not be unpacked.
	Kernel        string `json:"kernel"`
	KernelRelease string `json:"kernel_release"`
	// UMLRoot is the root folder that holds User-Mode Linux and its C library.
	UMLRoot    string `json:"uml_root"`
	UMLRelease string `json:"uml_release"`
	// Tools is the prefix with the programs of the initramfs; Tool runs them.
	Tools string `json:"tools"`
	// UserlandCPIO holds the programs of the guests, the module archives the
	// kernel modules of one kernel each. They are concatenated to an initramfs.
	UserlandCPIO      string `json:"userland_cpio"`
	KernelModulesCPIO string `json:"kernel_modules_cpio"`
	UMLModulesCPIO    string `json:"uml_modules_cpio"`
	// Bench has the programs of measurements; EnsureBench sets it.
	Bench *Bench `json:"-"`
}

// Options say how Ensure works.
type Options struct {
	// Cache is the folder to fill; empty means DefaultCache.
	Cache string
	// Refresh resolves all versions again.
	Refresh bool
	// Log receives one line per step; nil means none.
	Log func(format string, args ...any)
}

// DefaultCache is $VHOSTNET_CACHE, or .cache in the repository root.
func DefaultCache() (string, error) {
	if dir := os.Getenv(EnvCache); dir != "" {
		return filepath.Abs(dir)
	}
	root, err := RepositoryRoot()
	if err != nil {
		return "", fmt.Errorf("%w; set %s", err, EnvCache)
	}
	return filepath.Join(root, ".cache"), nil
}

// RepositoryRoot is the folder with go.mod above the working folder.
func RepositoryRoot() (string, error) {
	dir, err := os.Getwd()
	if err != nil {
		return "", fmt.Errorf("provision: working folder: %w", err)
	}
	for {
		if _, err := os.Stat(filepath.Join(dir, "go.mod")); err == nil {
			return dir, nil
		}
		parent := filepath.Dir(dir)
		if parent == dir {
			return "", errors.New("provision: no go.mod above the working folder")
		}
		dir = parent
	}
}

// Ensure fills the cache if it is not filled and says where things are. Several
// processes may call it at once; one of them does the work.
func Ensure(ctx context.Context, o Options) (*Assets, error) {
	unlock, err := o.open()
	if err != nil {
		return nil, err
	}
	defer unlock()
	stamp := filepath.Join(o.Cache, "manifest.json")
	if !o.Refresh {
		if a := load(stamp, o.Cache); a != nil {
			return a, nil
		}
	}
	start := time.Now()
	a, err := fill(ctx, o)
	if err != nil {
		return nil, err
	}
	if err := save(stamp, a); err != nil {
		return nil, err
	}
	o.Log("provisioned in %.1f s", time.Since(start).Seconds())
	return a, nil
}

// open sets the defaults, makes the cache folder and locks it.
func (o *Options) open() (unlock func(), err error) {
	if o.Log == nil {
		o.Log = func(string, ...any) {}
	}
	if o.Cache == "" {
		if o.Cache, err = DefaultCache(); err != nil {
			return nil, err
		}
	}
	if runtime.GOOS != "linux" || runtime.GOARCH != "amd64" {
		return nil, fmt.Errorf("provision: %s/%s: packages are unpacked on linux/amd64 only", runtime.GOOS, runtime.GOARCH)
	}
	if err := os.MkdirAll(o.Cache, 0o755); err != nil {
		return nil, fmt.Errorf("provision: cache: %w", err)
	}
	// The folder hides itself from git wherever it is.
	if err := os.WriteFile(filepath.Join(o.Cache, ".gitignore"), []byte("*\n"), 0o644); err != nil {
		return nil, fmt.Errorf("provision: cache: %w", err)
	}
	return lock(filepath.Join(o.Cache, "lock"))
}

// fill builds every asset anew, each in a folder of its own name.
func fill(ctx context.Context, o Options) (*Assets, error) {
	source, err := machineSource()
	if err != nil {
		return nil, err
	}
	a := &Assets{Recipe: recipe, Cache: o.Cache}
	stable, err := o.bookworm(ctx, source)
	if err != nil {
		return nil, err
	}
	next, err := o.trixie(ctx, source)
	if err != nil {
		return nil, err
	}
	// The tools come first: unpacking the kernel uses them.
	steps := []struct {
		name string
		run  func(context.Context, *apt, *Assets, Options) error
		from *apt
	}{
		{"guest programs", fillTools, stable},
		{"kernel", fillKernel, next},
		{"User-Mode Linux", fillUML, next},
		{"QEMU", fillQEMU, next},
		{"older QEMU", fillOldQEMU, stable},
	}
	for _, s := range steps {
		start := time.Now()
		if err := s.run(ctx, s.from, a, o); err != nil {
			return nil, fmt.Errorf("provision: %s: %w", s.name, err)
		}
		o.Log("%s: %.1f s", s.name, time.Since(start).Seconds())
	}
	return a, nil
}

// load returns the assets of a filled cache, nil if there is none that fits.
func load(stamp, cache string) *Assets {
	raw, err := os.ReadFile(stamp)
	if err != nil {
		return nil
	}
	var a Assets
	if json.Unmarshal(raw, &a) != nil || a.Recipe != recipe || a.Cache != cache {
		return nil
	}
	for _, p := range []string{
		a.QEMU.Prefix, a.OldQEMU.Prefix, a.Kernel, a.UMLRoot, a.Tools,
		a.UserlandCPIO, a.KernelModulesCPIO, a.UMLModulesCPIO,
	} {
		if _, err := os.Stat(p); err != nil {
			return nil
		}
	}
	return &a
}

func save(stamp string, manifest any) error {
	raw, err := json.MarshalIndent(manifest, "", "  ")
	if err != nil {
		return fmt.Errorf("provision: manifest: %w", err)
	}
	return writeFile(stamp, func(w io.Writer) error {
		_, err := w.Write(append(raw, '\n'))
		return err
	})
}

// writeFile writes beside the target and renames, so that an interrupted run
// leaves no half-written file under the final name.
func writeFile(path string, write func(io.Writer) error) error {
	f, err := os.CreateTemp(filepath.Dir(path), ".new-*")
	if err != nil {
		return fmt.Errorf("provision: %w", err)
	}
	defer os.Remove(f.Name())
	if err := errors.Join(write(f), f.Chmod(0o644), f.Close()); err != nil {
		return fmt.Errorf("provision: write %s: %w", path, err)
	}
	if err := os.Rename(f.Name(), path); err != nil {
		return fmt.Errorf("provision: %w", err)
	}
	return nil
}

// replaceDir fills a folder beside the target and renames it into place.
func replaceDir(path string, build func(dir string) error) error {
	tmp, err := os.MkdirTemp(filepath.Dir(path), ".new-*")
	if err != nil {
		return fmt.Errorf("provision: %w", err)
	}
	defer os.RemoveAll(tmp)
	if err := errors.Join(os.Chmod(tmp, 0o755), build(tmp)); err != nil {
		return err
	}
	if err := os.RemoveAll(path); err != nil {
		return fmt.Errorf("provision: %w", err)
	}
	if err := os.Rename(tmp, path); err != nil {
		return fmt.Errorf("provision: %w", err)
	}
	return nil
}

// lock takes an exclusive lock that dies with the process.
func lock(path string) (func(), error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return nil, fmt.Errorf("provision: lock: %w", err)
	}
	for {
		err = unix.Flock(int(f.Fd()), unix.LOCK_EX)
		if !errors.Is(err, unix.EINTR) {
			break
		}
	}
	if err != nil {
		f.Close()
		return nil, fmt.Errorf("provision: lock %s: %w", path, err)
	}
	return func() { f.Close() }, nil
}
