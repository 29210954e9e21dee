package qemutest

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// startUML starts User-Mode Linux in a root folder of its own, built from the
// provisioned one in a private mount namespace. A shell is process 1 of a process
// namespace, so that the helper processes, which ignore most signals, end with it;
// User-Mode Linux as process 1 could not abort.
func (g *Guest) startUML(ctx context.Context, initrd string, control *os.File) error {
	c := g.config
	root := filepath.Join(c.Dir, "root")
	if err := os.MkdirAll(root, 0o755); err != nil {
		return fmt.Errorf("qemutest: %w", err)
	}
	args := append(kernelArguments(c, "ttyS0"),
		fmt.Sprintf("mem=%dM", c.MemoryMB), "initrd=/run/"+filepath.Base(initrd),
		"con=null", "con0=fd:0,fd:1", "ssl=null", "ssl0=fd:3,fd:3")
	if c.Socket != "" {
		args = append(args, "virtio_uml.device=/tmp/"+filepath.Base(c.Socket)+":1")
	}
	// The guest lives until Close, not as long as the call that started it.
	cmd := exec.CommandContext(context.WithoutCancel(ctx), "/bin/sh",
		append([]string{"-c", `/bin/linux.uml "$@"; exit $?`, "sh"}, args...)...)
	cmd.Dir = "/"
	cmd.Env = []string{"TMPDIR=/dev/shm", "HOME=/dev/shm"}
	cmd.ExtraFiles = []*os.File{control}
	cmd.Stdout, cmd.Stderr = g.Console, g.Stderr
	cmd.SysProcAttr = &unix.SysProcAttr{Chroot: root, Cloneflags: unix.CLONE_NEWPID}
	var err error
	g.process, err = start("User-Mode Linux", cmd, func() error {
		return enterUMLRoot(root, c)
	})
	return err
}

// enterUMLRoot moves the calling thread into a mount namespace of its own in
// which root is the guest's root folder.
func enterUMLRoot(root string, c Config) error {
	if err := unix.Unshare(unix.CLONE_NEWNS | unix.CLONE_FS); err != nil {
		return fmt.Errorf("mount namespace: %w", err)
	}
	mounts := []struct {
		source, target, kind string
		flags                uintptr
	}{
		{"", "/", "", unix.MS_PRIVATE | unix.MS_REC},
		{c.Assets.UMLRoot, root, "", unix.MS_BIND},
		{"proc", filepath.Join(root, "proc"), "proc", 0},
		// Guest memory is a file in here.
		{"tmpfs", filepath.Join(root, "dev/shm"), "tmpfs", 0},
		{c.Dir, filepath.Join(root, "run"), "", unix.MS_BIND},
	}
	if c.Socket != "" {
		mounts = append(mounts, struct {
			source, target, kind string
			flags                uintptr
		}{filepath.Dir(c.Socket), filepath.Join(root, "tmp"), "", unix.MS_BIND})
	}
	for _, m := range mounts {
		if err := unix.Mount(m.source, m.target, m.kind, m.flags, ""); err != nil {
			return fmt.Errorf("mount %s: %w", m.target, err)
		}
	}
	return nil
}
