package provision

import (
	"bytes"
	"context"
	"debug/elf"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
)

// extractVMLinux unpacks the kernel inside a bzImage. Under an emulated CPU the
// kernel's own decompression takes two seconds of every boot.
//
// The boot protocol's setup header says where the payload is: setup_sects at
// 0x1f1 (sectors of 512 bytes, without the first), payload_offset at 0x248 and
// payload_length at 0x24c, counted from the protected-mode part.
func extractVMLinux(ctx context.Context, a *Assets, image, to string) error {
	raw, err := os.ReadFile(image)
	if err != nil {
		return err
	}
	if len(raw) < 0x250 || string(raw[0x202:0x206]) != "HdrS" {
		return fmt.Errorf("%s is not a bzImage", image)
	}
	sectors := uint64(raw[0x1f1])
	if sectors == 0 {
		sectors = 4
	}
	start := (sectors+1)*512 + uint64(binary.LittleEndian.Uint32(raw[0x248:]))
	length := uint64(binary.LittleEndian.Uint32(raw[0x24c:]))
	// The last four bytes of the payload are the size of what it unpacks to.
	if start > uint64(len(raw)) || length > uint64(len(raw))-start || length < 8 {
		return fmt.Errorf("%s: the payload is outside the file", image)
	}
	payload := raw[start : start+length]
	size := int(binary.LittleEndian.Uint32(payload[length-4:]))
	out, err := decompress(ctx, a, payload[:length-4])
	if err != nil {
		return fmt.Errorf("%s: %w", image, err)
	}
	if len(out) != size || !bytes.HasPrefix(out, []byte(elf.ELFMAG)) {
		return fmt.Errorf("%s: the payload is no ELF file of %d bytes", image, size)
	}
	return writeFile(to, func(w io.Writer) error {
		_, err := w.Write(out)
		return err
	})
}

// decompress unpacks what the kernel's build compresses with, by magic number.
func decompress(ctx context.Context, a *Assets, raw []byte) ([]byte, error) {
	var args []string
	switch {
	case bytes.HasPrefix(raw, []byte("\x28\xb5\x2f\xfd")):
		args = []string{"zstd", "-dcq"}
	case bytes.HasPrefix(raw, []byte("\xfd7zXZ\x00")):
		args = []string{"busybox", "xz", "-dc"}
	case bytes.HasPrefix(raw, []byte("\x1f\x8b")):
		args = []string{"busybox", "gzip", "-dc"}
	case bytes.HasPrefix(raw, []byte(elf.ELFMAG)):
		return raw, nil
	default:
		return nil, errors.New("unknown compression")
	}
	cmd := a.Tool(ctx, args[0], args[1:]...)
	if args[0] == "busybox" {
		cmd = a.busybox(ctx, args[1:]...)
	}
	cmd.Stdin = bytes.NewReader(raw)
	var errs bytes.Buffer
	cmd.Stderr = &errs
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("%s: %w: %s", args[0], err, tail(errs.String(), 200))
	}
	return out, nil
}

// modules finds the named modules below root with what they depend on. A name
// without a file is built in, or the kernel does not have it.
func modules(ctx context.Context, a *Assets, root string, names []string) ([]module, error) {
	files := map[string]string{}
	err := filepath.WalkDir(root, func(path string, d os.DirEntry, err error) error {
		if err != nil {
			return err
		}
		base, suffix, ok := strings.Cut(filepath.Base(path), ".ko")
		if ok && !d.IsDir() && (suffix == "" || strings.HasPrefix(suffix, ".")) {
			files[strings.ReplaceAll(base, "-", "_")] = path
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	var list []module
	seen := map[string]bool{}
	var add func(name string) error
	add = func(name string) error {
		name = strings.ReplaceAll(name, "-", "_")
		if seen[name] || files[name] == "" {
			return nil
		}
		seen[name] = true
		raw, err := os.ReadFile(files[name])
		if err != nil {
			return err
		}
		if raw, err = decompress(ctx, a, raw); err != nil {
			return fmt.Errorf("module %s: %w", name, err)
		}
		m := module{name: name, content: raw}
		if m.depends, err = moduleDepends(raw); err != nil {
			return fmt.Errorf("module %s: %w", name, err)
		}
		for _, d := range m.depends {
			if err := add(d); err != nil {
				return err
			}
		}
		list = append(list, m)
		return nil
	}
	for _, name := range names {
		if err := add(name); err != nil {
			return nil, err
		}
	}
	return list, nil
}

// module is one kernel module, uncompressed; modules stands in load order.
type module struct {
	name    string
	content []byte
	depends []string
}

// moduleDepends reads the depends= entry of a module's .modinfo section.
func moduleDepends(raw []byte) ([]string, error) {
	f, err := elf.NewFile(bytes.NewReader(raw))
	if err != nil {
		return nil, err
	}
	s := f.Section(".modinfo")
	if s == nil {
		return nil, errors.New("no .modinfo")
	}
	info, err := s.Data()
	if err != nil {
		return nil, err
	}
	var depends []string
	for entry := range strings.SplitSeq(string(info), "\x00") {
		if v, ok := strings.CutPrefix(entry, "depends="); ok && v != "" {
			depends = append(depends, strings.Split(v, ",")...)
		}
	}
	return depends, nil
}

// libraryClosure finds the dynamic loader and all libraries that programs of a
// prefix need, inside the prefix.
func libraryClosure(prefix string, programs ...string) ([]string, error) {
	var list []string
	seen := map[string]bool{}
	var visit func(path string) error
	visit = func(path string) error {
		f, err := elf.Open(path)
		if err != nil {
			return fmt.Errorf("%s: %w", path, err)
		}
		defer f.Close()
		needed, err := f.ImportedLibraries()
		if err != nil {
			return fmt.Errorf("%s: %w", path, err)
		}
		for _, name := range needed {
			if seen[name] {
				continue
			}
			seen[name] = true
			lib := ""
			for _, dir := range []string{"usr/lib/x86_64-linux-gnu", "lib/x86_64-linux-gnu", "usr/lib64", "lib64"} {
				p := filepath.Join(prefix, dir, name)
				if _, err := os.Stat(p); err == nil {
					lib = p
					break
				}
			}
			if lib == "" {
				return fmt.Errorf("%s needs %s, which is not in its packages", path, name)
			}
			list = append(list, lib)
			if err := visit(lib); err != nil {
				return err
			}
		}
		return nil
	}
	for _, p := range programs {
		if err := visit(filepath.Join(prefix, p)); err != nil {
			return nil, err
		}
	}
	const ld = "ld-linux-x86-64.so.2"
	if !seen[ld] {
		list = append(list, loader(prefix))
	}
	return list, nil
}
