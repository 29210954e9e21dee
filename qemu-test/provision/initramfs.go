package provision

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"strings"

	"github.com/u-root/u-root/pkg/cpio"
)

// busybox runs the static busybox of the tools.
func (a *Assets) busybox(ctx context.Context, args ...string) *exec.Cmd {
	return exec.CommandContext(ctx, filepath.Join(a.Tools, "bin/busybox"), args...)
}

// File is a file for the initramfs.
type File struct {
	// Name is the path in the guest, without the leading slash.
	Name string
	// Content is the file's text; From, when set, names a file of the host
	// instead.
	Content string
	From    string
	// Link, when set, makes it a symbolic link to that path.
	Link string
	// Mode is the permission; 0 means 0755.
	Mode uint64
}

func (f File) record() (cpio.Record, error) {
	if f.Link != "" {
		return cpio.Symlink(f.Name, f.Link), nil
	}
	mode := f.Mode
	if mode == 0 {
		mode = 0o755
	}
	content := []byte(f.Content)
	if f.From != "" {
		raw, err := os.ReadFile(f.From)
		if err != nil {
			return cpio.Record{}, fmt.Errorf("provision: initramfs: %w", err)
		}
		content = raw
	}
	return cpio.StaticRecord(content, cpio.Info{Name: f.Name, Mode: cpio.S_IFREG | mode}), nil
}

// WriteArchive writes files, with the folders above them, as a cpio archive
// that can stand behind others in an initramfs.
func WriteArchive(w io.Writer, files ...File) error {
	records := make([]cpio.Record, 0, len(files))
	for _, f := range files {
		r, err := f.record()
		if err != nil {
			return err
		}
		records = append(records, r)
	}
	return writeRecords(w, records)
}

// writeRecords adds the folders that the records need and a trailer.
func writeRecords(w io.Writer, records []cpio.Record) error {
	count := &countWriter{w: w}
	out := cpio.Newc.Writer(count)
	made := map[string]bool{".": true}
	var folder func(dir string) error
	folder = func(dir string) error {
		if made[dir] {
			return nil
		}
		made[dir] = true
		if err := folder(path.Dir(dir)); err != nil {
			return err
		}
		return out.WriteRecord(cpio.Directory(dir, 0o755))
	}
	for _, r := range records {
		if err := folder(path.Dir(r.Name)); err != nil {
			return fmt.Errorf("provision: cpio: %w", err)
		}
		if err := out.WriteRecord(r); err != nil {
			return fmt.Errorf("provision: cpio: %w", err)
		}
	}
	if err := cpio.WriteTrailer(out); err != nil {
		return fmt.Errorf("provision: cpio: %w", err)
	}
	// The kernel skips zeros between archives and wants each on a word boundary.
	if pad := -count.n & 511; pad != 0 {
		if _, err := count.Write(make([]byte, pad)); err != nil {
			return fmt.Errorf("provision: cpio: %w", err)
		}
	}
	return nil
}

type countWriter struct {
	w io.Writer
	n int
}

func (c *countWriter) Write(b []byte) (int, error) {
	n, err := c.w.Write(b)
	c.n += n
	return n, err
}

// writeUserland archives the guest's programs with their libraries and the
// folders the init mounts on.
func writeUserland(to, prefix string) error {
	records := []cpio.Record{
		cpio.Directory("proc", 0o755), cpio.Directory("sys", 0o755), cpio.Directory("dev", 0o755),
		cpio.Directory("tmp", 0o777), cpio.Directory("run", 0o755), cpio.Directory("root", 0o700),
		// Go programs end at once when the kernel could not open a console for
		// them and there is no null device to take its place.
		cpio.CharDev("dev/console", 0o600, 5, 1), cpio.CharDev("dev/null", 0o666, 1, 3),
	}
	libs, err := libraryClosure(prefix, guestPrograms...)
	if err != nil {
		return err
	}
	files := []File{{Name: "bin/busybox", From: filepath.Join(prefix, "bin/busybox")}}
	for _, p := range guestPrograms {
		files = append(files, File{Name: "bin/" + path.Base(p), From: filepath.Join(prefix, p)})
	}
	for _, l := range libs {
		files = append(files, File{Name: libraryPlace(l), From: l})
	}
	for _, f := range files {
		r, err := f.record()
		if err != nil {
			return err
		}
		records = append(records, r)
	}
	applets, err := exec.Command(filepath.Join(prefix, "bin/busybox"), "--list").Output()
	if err != nil {
		return fmt.Errorf("busybox --list: %w", err)
	}
	own := map[string]bool{"busybox": true}
	for _, f := range files {
		own[path.Base(f.Name)] = true
	}
	for name := range strings.FieldsSeq(string(applets)) {
		if !own[name] {
			records = append(records, cpio.Symlink("bin/"+name, "busybox"))
		}
	}
	return writeFile(to, func(w io.Writer) error { return writeRecords(w, records) })
}

// libraryPlace is where a library of a prefix goes in a root folder: the loader
// at the path that programs name, the others where Debian's loader looks.
func libraryPlace(file string) string {
	name := filepath.Base(file)
	if strings.HasPrefix(name, "ld-linux") {
		return "lib64/" + name
	}
	return "lib/x86_64-linux-gnu/" + name
}

// writeModules archives the guest's modules where busybox's modprobe looks.
func writeModules(ctx context.Context, a *Assets, to, root, release string) error {
	list, err := modules(ctx, a, root, guestModules)
	if err != nil {
		return err
	}
	dir := "lib/modules/" + release
	var deps strings.Builder
	var files []File
	known := map[string][]string{} // what a module needs, directly and not
	for _, m := range list {
		var needs []string
		for _, d := range m.depends {
			if deps, ok := known[strings.ReplaceAll(d, "-", "_")]; ok {
				needs = append(append(needs, d), deps...)
			}
		}
		known[m.name] = needs
		files = append(files, File{Name: dir + "/" + m.name + ".ko", Content: string(m.content), Mode: 0o644})
		fmt.Fprintf(&deps, "%s.ko:", m.name)
		for _, d := range needs {
			fmt.Fprintf(&deps, " %s.ko", strings.ReplaceAll(d, "-", "_"))
		}
		deps.WriteByte('\n')
	}
	if _, ok := known["virtio_net"]; !ok {
		return fmt.Errorf("kernel %s has no virtio_net module", release)
	}
	files = append(files, File{Name: dir + "/modules.dep", Content: deps.String(), Mode: 0o644})
	for _, name := range []string{"modules.alias", "modules.symbols", "modules.builtin"} {
		files = append(files, File{Name: dir + "/" + name, Mode: 0o644})
	}
	return writeFile(to, func(w io.Writer) error { return WriteArchive(w, files...) })
}
