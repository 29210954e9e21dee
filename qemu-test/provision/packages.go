package provision

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
)

// toolPackages are the programs of the guests, and zstd, which unpacks kernels.
// Debian 12's versions are used on purpose: they run on every later machine.
var toolPackages = []string{"busybox-static", "ethtool", "iproute2", "iperf3", "sockperf", "zstd"}

// guestPrograms is what goes into the initramfs, by its place in the prefix.
var guestPrograms = []string{"sbin/ethtool", "bin/ip", "sbin/tc", "usr/bin/iperf3", "usr/bin/sockperf"}

// guestModules are loaded or can be loaded in the guest; what they depend on is
// added, and what a kernel has built in is left out.
var guestModules = []string{
	"virtio_net", "virtio_mmio", "vsock", "vsock_loopback", "veth", "tun", "pktgen", "af_packet", "sch_fq", "8021q",
}

func fillTools(ctx context.Context, from *apt, a *Assets, o Options) error {
	files, err := from.closure(ctx, "bookworm", toolPackages...)
	if err != nil {
		return err
	}
	a.Tools = filepath.Join(o.Cache, "tools")
	if err := replaceDir(a.Tools, func(dir string) error { return unpack(ctx, dir, files) }); err != nil {
		return err
	}
	a.UserlandCPIO = filepath.Join(o.Cache, "userland.cpio")
	return writeUserland(a.UserlandCPIO, a.Tools)
}

// Tool is a command that runs a program of the tools prefix, or of that of the
// measurements, on the host, with the C library it was built against.
func (a *Assets) Tool(ctx context.Context, name string, args ...string) *exec.Cmd {
	prefixes := []string{a.Tools}
	if a.Bench != nil {
		prefixes = append(prefixes, a.Bench.Prefix)
	}
	for _, prefix := range prefixes {
		for _, dir := range []string{"bin", "sbin", "usr/bin", "usr/sbin"} {
			p := filepath.Join(prefix, dir, name)
			if _, err := os.Stat(p); err == nil {
				return loaderCommand(ctx, prefix, p, args...)
			}
		}
	}
	return loaderCommand(ctx, a.Tools, name, args...)
}

// loaderCommand runs a program from a prefix through the prefix's own dynamic
// loader: the machine's C library may be older.
func loaderCommand(ctx context.Context, prefix, path string, args ...string) *exec.Cmd {
	libs := strings.Join([]string{
		filepath.Join(prefix, "usr/lib/x86_64-linux-gnu"), filepath.Join(prefix, "lib/x86_64-linux-gnu"),
	}, ":")
	full := append([]string{"--library-path", libs, path}, args...)
	return exec.CommandContext(ctx, loader(prefix), full...)
}

func loader(prefix string) string {
	for _, dir := range []string{"usr/lib64", "lib64", "lib/x86_64-linux-gnu"} {
		p := filepath.Join(prefix, dir, "ld-linux-x86-64.so.2")
		if _, err := os.Stat(p); err == nil {
			return p
		}
	}
	return filepath.Join(prefix, "lib64/ld-linux-x86-64.so.2")
}

// Command is a command that runs this QEMU.
func (q QEMU) Command(ctx context.Context, args ...string) *exec.Cmd {
	firmware := []string{"-L", filepath.Join(q.Prefix, "usr/share/qemu"), "-L", filepath.Join(q.Prefix, "usr/share/seabios")}
	cmd := loaderCommand(ctx, q.Prefix, filepath.Join(q.Prefix, "usr/bin/qemu-system-x86_64"), append(firmware, args...)...)
	// Older QEMUs have their accelerators as modules.
	cmd.Env = append(os.Environ(), "QEMU_MODULE_DIR="+filepath.Join(q.Prefix, "usr/lib/x86_64-linux-gnu/qemu"))
	return cmd
}

func fillQEMU(ctx context.Context, from *apt, a *Assets, o Options) (err error) {
	a.QEMU, err = unpackQEMU(ctx, from, "trixie-backports", filepath.Join(o.Cache, "qemu"))
	if err == nil && !a.QEMU.TestDevice {
		err = fmt.Errorf("version %s has no vhost-user-test-device-pci (10.1 was the first)", a.QEMU.Version)
	}
	return err
}

func fillOldQEMU(ctx context.Context, from *apt, a *Assets, o Options) (err error) {
	a.OldQEMU, err = unpackQEMU(ctx, from, "bookworm", filepath.Join(o.Cache, "qemu-old"))
	return err
}

func unpackQEMU(ctx context.Context, from *apt, suite, prefix string) (QEMU, error) {
	q := QEMU{Prefix: prefix}
	files, err := from.closure(ctx, suite, "qemu-system-x86")
	if err != nil {
		return q, err
	}
	if q.Version, err = from.version(ctx, "qemu-system-x86", suite); err != nil {
		return q, err
	}
	if err := replaceDir(prefix, func(dir string) error { return unpack(ctx, dir, files) }); err != nil {
		return q, err
	}
	help, err := q.Command(ctx, "-device", "help").CombinedOutput()
	if err != nil {
		return q, fmt.Errorf("version %s does not start: %w: %s", q.Version, err, tail(string(help), 300))
	}
	q.TestDevice = strings.Contains(string(help), `"vhost-user-test-device-pci"`)
	// A chardev that cannot connect ends QEMU at once; an unknown option is
	// named in what it prints before that.
	out, _ := q.Command(ctx, "-machine", "none", "-display", "none", "-nodefaults", "-chardev",
		"socket,id=c0,path="+filepath.Join(prefix, "absent")+",reconnect-ms=-1").CombinedOutput()
	q.ReconnectMS = !strings.Contains(string(out), "Invalid parameter 'reconnect-ms'")
	return q, nil
}

var kernelPackage = regexp.MustCompile(`^linux-image-[0-9].*-cloud-amd64$`)

// fillKernel takes the kernel that the meta package names today.
func fillKernel(ctx context.Context, from *apt, a *Assets, o Options) error {
	out, err := from.run(ctx, from.dir, "apt-cache", "depends", "--important", "linux-image-cloud-amd64")
	if err != nil {
		return err
	}
	var pkg string
	for word := range strings.FieldsSeq(out) {
		if kernelPackage.MatchString(word) {
			pkg = word
		}
	}
	if pkg == "" {
		return errors.New("linux-image-cloud-amd64 depends on no kernel package")
	}
	files, err := from.single(ctx, "trixie", pkg)
	if err != nil {
		return err
	}
	dir := filepath.Join(o.Cache, "kernel")
	if err := replaceDir(dir, func(dir string) error { return unpack(ctx, dir, files) }); err != nil {
		return err
	}
	images, err := filepath.Glob(filepath.Join(dir, "boot/vmlinuz-*"))
	if err != nil || len(images) != 1 {
		return fmt.Errorf("%s has %d kernels", pkg, len(images))
	}
	a.KernelRelease = strings.TrimPrefix(filepath.Base(images[0]), "vmlinuz-")
	a.Kernel = images[0]
	plain := filepath.Join(dir, "boot/vmlinux")
	if err := extractVMLinux(ctx, a, images[0], plain); err != nil {
		o.Log("booting the compressed kernel: %v", err)
	} else {
		a.Kernel = plain
	}
	modules, err := moduleRoot(dir, a.KernelRelease)
	if err != nil {
		return err
	}
	a.KernelModulesCPIO = filepath.Join(o.Cache, "modules-kernel.cpio")
	return writeModules(ctx, a, a.KernelModulesCPIO, modules, a.KernelRelease)
}

func moduleRoot(prefix, release string) (string, error) {
	for _, dir := range []string{"usr/lib/modules", "lib/modules", "usr/lib/uml/modules"} {
		p := filepath.Join(prefix, dir, release)
		if _, err := os.Stat(p); err == nil {
			return p, nil
		}
	}
	return "", fmt.Errorf("no modules for %s", release)
}

// fillUML makes a root folder that holds only User-Mode Linux, its C library
// and a shell to start it.
func fillUML(ctx context.Context, from *apt, a *Assets, o Options) error {
	files, err := from.single(ctx, "trixie", "user-mode-linux", "libc6")
	if err != nil {
		return err
	}
	all := filepath.Join(o.Cache, "uml-packages")
	if err := replaceDir(all, func(dir string) error { return unpack(ctx, dir, files) }); err != nil {
		return err
	}
	releases, err := filepath.Glob(filepath.Join(all, "usr/lib/uml/modules/*"))
	if err != nil || len(releases) != 1 {
		return fmt.Errorf("user-mode-linux has modules for %d releases", len(releases))
	}
	a.UMLRelease = filepath.Base(releases[0])
	a.UMLRoot = filepath.Join(o.Cache, "uml")
	err = replaceDir(a.UMLRoot, func(dir string) error {
		for _, sub := range []string{"bin", "lib64", "lib/x86_64-linux-gnu", "proc", "dev/shm", "tmp", "run"} {
			if err := os.MkdirAll(filepath.Join(dir, sub), 0o755); err != nil {
				return err
			}
		}
		libs, err := libraryClosure(all, "usr/bin/linux.uml")
		if err != nil {
			return err
		}
		if err := errors.Join(
			copyFile(filepath.Join(all, "usr/bin/linux.uml"), filepath.Join(dir, "bin/linux.uml")),
			copyFile(filepath.Join(a.Tools, "bin/busybox"), filepath.Join(dir, "bin/sh")),
		); err != nil {
			return err
		}
		for _, lib := range libs {
			if err := copyFile(lib, filepath.Join(dir, libraryPlace(lib))); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	a.UMLModulesCPIO = filepath.Join(o.Cache, "modules-uml.cpio")
	if err := writeModules(ctx, a, a.UMLModulesCPIO, releases[0], a.UMLRelease); err != nil {
		return err
	}
	return os.RemoveAll(all)
}

func copyFile(from, to string) error {
	raw, err := os.ReadFile(from)
	if err != nil {
		return err
	}
	return os.WriteFile(to, raw, 0o755)
}

// Summary is one line for people.
func (a *Assets) Summary() string {
	parts := []string{
		"QEMU " + a.QEMU.Version, "older QEMU " + a.OldQEMU.Version,
		"kernel " + a.KernelRelease, "User-Mode Linux " + a.UMLRelease,
	}
	if filepath.Base(a.Kernel) != "vmlinux" {
		parts = append(parts, "compressed kernel")
	}
	return strings.Join(parts, ", ")
}
