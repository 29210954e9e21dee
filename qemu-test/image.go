package qemutest

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/vhostnet/vhostnet/qemu-test/provision"
)

// BuildAgent compiles the guest's init into dir and returns its path.
func BuildAgent(ctx context.Context, dir string) (string, error) {
	return build(ctx, dir, "guest-init", "./qemu-test/guest")
}

// BuildBackend compiles the vhostnet command into dir and returns its path.
func BuildBackend(ctx context.Context, dir string) (string, error) {
	return build(ctx, dir, "vhostnet", "./cmd/vhostnet")
}

// build makes a static program: it must run without any library.
func build(ctx context.Context, dir, name, pkg string) (string, error) {
	root, err := provision.RepositoryRoot()
	if err != nil {
		return "", err
	}
	out := filepath.Join(dir, name)
	cmd := exec.CommandContext(ctx, "go", "build", "-trimpath", "-ldflags=-s -w", "-o", out, pkg)
	cmd.Dir = root
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if text, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("qemutest: go build %s: %w\n%s", pkg, err, text)
	}
	return out, nil
}

// writeInitramfs puts the archives behind each other: programs, modules of the
// lane's kernel, and what belongs to this guest.
func writeInitramfs(to string, c Config) error {
	modules := c.Assets.KernelModulesCPIO
	if c.Lane == LaneUML {
		modules = c.Assets.UMLModulesCPIO
	}
	f, err := os.Create(to)
	if err != nil {
		return fmt.Errorf("qemutest: initramfs: %w", err)
	}
	defer f.Close()
	for _, part := range []string{c.Assets.UserlandCPIO, modules} {
		in, err := os.Open(part)
		if err != nil {
			return fmt.Errorf("qemutest: initramfs: %w", err)
		}
		_, err = io.Copy(f, in)
		in.Close()
		if err != nil {
			return fmt.Errorf("qemutest: initramfs: %w", err)
		}
	}
	files := append([]provision.File{
		{Name: "init", From: c.Agent},
		{Name: "bin/vsock-get", Link: "/init"},
		{Name: "bin/udp-sink", Link: "/init"},
	}, c.Files...)
	if err := provision.WriteArchive(f, files...); err != nil {
		return err
	}
	if err := f.Close(); err != nil {
		return fmt.Errorf("qemutest: initramfs: %w", err)
	}
	return nil
}

// kernelArguments is the part of the kernel's command line that all lanes share.
// control is the serial line for commands.
func kernelArguments(c Config, control string) []string {
	args := []string{
		"quiet", "panic=-1",
		"vhostnet.modules=" + strings.Join(c.Modules, ","), "vhostnet.control=" + control,
	}
	if c.Address != "" {
		args = append(args, "vhostnet.address="+c.Address)
	}
	return args
}
