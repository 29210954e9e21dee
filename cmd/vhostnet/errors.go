package main

import (
	"errors"
	"io/fs"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/vhostnet/vhostnet/mgmt"
	"github.com/vhostnet/vhostnet/tap"
	"github.com/vhostnet/vhostnet/vhostuser"
)

// explain turns an error into one line, with a hint where the packages that
// know the cause have not given one.
func explain(err error) string {
	s := strings.Join(strings.FieldsFunc(err.Error(), func(r rune) bool { return r == '\n' || r == '\r' }), "; ")
	if h := hint(err); h != "" {
		s += " (" + h + ")"
	}
	return s
}

func hint(err error) string {
	var usage usageError
	var te *tap.Error
	var le *mgmt.ListenError
	if errors.As(err, &usage) || errors.As(err, &te) || errors.As(err, &le) {
		return ""
	}
	switch {
	case errors.Is(err, vhostuser.ErrInUse):
		return "another back-end serves this path: end it or choose another"
	case errors.Is(err, unix.EADDRINUSE):
		return "the path exists; choose another or remove it"
	case errors.Is(err, unix.ENOTSOCK):
		return "it must be a Unix stream socket"
	case errors.Is(err, unix.EBADF):
		return "the parent process must leave that descriptor open"
	case errors.Is(err, fs.ErrNotExist):
		return "make the directory first"
	case errors.Is(err, fs.ErrPermission):
		return "this user may not do that; see the directory's and the file's permissions"
	case errors.Is(err, unix.EMFILE):
		return "raise the limit of open files: ulimit -n"
	}
	return ""
}
