package guestmem

import (
	"testing"

	"golang.org/x/sys/unix"
)

// TestServed: memory that another process serves page by page is not mapped;
// what front-ends do use is.
func TestServed(t *testing.T) {
	for _, fs := range []int64{unix.FUSE_SUPER_MAGIC, unix.NFS_SUPER_MAGIC, unix.SMB2_SUPER_MAGIC, unix.V9FS_MAGIC} {
		if served(fs) == "" {
			t.Errorf("file system %#x is accepted", fs)
		}
	}
	for _, fs := range []int64{unix.TMPFS_MAGIC, unix.HUGETLBFS_MAGIC, unix.EXT4_SUPER_MAGIC, unix.XFS_SUPER_MAGIC} {
		if name := served(fs); name != "" {
			t.Errorf("%s is refused", name)
		}
	}
}
