package provision

import (
	"bytes"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/u-root/u-root/pkg/cpio"
)

// TestWriteArchive: folders come before what is in them, once each, and an
// archive ends where another can begin.
func TestWriteArchive(t *testing.T) {
	var b bytes.Buffer
	err := WriteArchive(
		&b,
		File{Name: "etc/vhostnet/script", Content: "echo"},
		File{Name: "etc/other", Content: "x", Mode: 0o644},
		File{Name: "bin/link", Link: "/init"},
	)
	if err != nil {
		t.Fatal(err)
	}
	if b.Len()%512 != 0 {
		t.Errorf("the archive has %d bytes", b.Len())
	}
	records, err := cpio.ReadAllRecords(cpio.Newc.Reader(bytes.NewReader(b.Bytes())))
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, r := range records {
		names = append(names, r.Name)
	}
	want := []string{"etc", "etc/vhostnet", "etc/vhostnet/script", "etc/other", "bin", "bin/link"}
	if diff := cmp.Diff(want, names); diff != "" {
		t.Error(diff)
	}
	if mode := records[3].Mode & 0o777; mode != 0o644 {
		t.Errorf("mode %o", mode)
	}
}

func TestArchiveOfMissingFile(t *testing.T) {
	if err := WriteArchive(&bytes.Buffer{}, File{Name: "x", From: "/does/not/exist"}); err == nil {
		t.Error("no error")
	}
}
