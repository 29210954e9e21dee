package guestmem

import (
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// mapFile maps one region of a file. Nothing is read or populated: a sparse file
// of any size is mapped at once.
func mapFile(r Region, fd int) (slot, error) {
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return slot{}, fmt.Errorf("%w: fstat: %w", ErrFile, err)
	}
	if st.Mode&unix.S_IFMT != unix.S_IFREG {
		return slot{}, fmt.Errorf("%w: not a regular file (mode %#o)", ErrFile, st.Mode)
	}
	if end := r.Offset + r.Size; end > uint64(st.Size) {
		return slot{}, fmt.Errorf("%w: region ends at %#x, the file at %#x", ErrFile, end, st.Size)
	}
	var fs unix.Statfs_t
	if err := unix.Fstatfs(fd, &fs); err != nil {
		return slot{}, fmt.Errorf("%w: fstatfs: %w", ErrFile, err)
	}
	if name := served(fs.Type); name != "" {
		return slot{}, fmt.Errorf("%w: on %s, where whoever serves it can stop this process", ErrFile, name)
	}
	page := uint64(os.Getpagesize())
	// Mappings of huge pages must begin and end on one.
	if fs.Type == unix.HUGETLBFS_MAGIC && uint64(fs.Bsize) <= pageSlack/2 {
		page = max(page, uint64(fs.Bsize))
	}
	from := r.Offset &^ (page - 1)
	lead := r.Offset - from
	size := (lead + r.Size + page - 1) &^ (page - 1)
	raw, err := unix.Mmap(fd, int64(from), int(size), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED|unix.MAP_NORESERVE)
	if err != nil {
		return slot{}, fmt.Errorf("%w: mmap: %w", ErrFile, err)
	}
	// Guest memory has no place in a core file of this process.
	_ = unix.Madvise(raw, unix.MADV_DONTDUMP)
	m := &mapping{raw: raw, unmap: unix.Munmap}
	m.refs.Store(1)
	live.add(m)
	return slot{r, raw[lead : lead+r.Size : lead+r.Size], m}, nil
}

// served returns the name of a type of file system in which each access to a
// mapped page waits for another process or machine, "" for others. A front-end
// could keep such an access waiting for ever, and Go's collector with it.
func served(fsType int64) string {
	switch fsType {
	case unix.FUSE_SUPER_MAGIC:
		return "FUSE"
	case unix.NFS_SUPER_MAGIC:
		return "NFS"
	case unix.CIFS_SUPER_MAGIC, unix.SMB2_SUPER_MAGIC:
		return "SMB"
	case unix.V9FS_MAGIC:
		return "9P"
	}
	return ""
}
