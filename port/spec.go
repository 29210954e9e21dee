package port

import (
	"errors"
	"fmt"
	"strings"
)

// Spec names a port: KIND or KIND:ARGS.
type Spec struct {
	Kind, Args string
}

// ErrSpec is wrapped by errors of Parse.
var ErrSpec = errors.New("port: notation")

// Parse reads the KIND:ARGS notation. What kinds there are, and what their
// arguments mean, is the business of who opens the port.
func Parse(s string) (Spec, error) {
	kind, args, colon := strings.Cut(s, ":")
	switch {
	case kind == "":
		return Spec{}, fmt.Errorf("%w: %q has no kind: want KIND or KIND:ARGS", ErrSpec, s)
	case colon && args == "":
		return Spec{}, fmt.Errorf("%w: %q has nothing behind the colon", ErrSpec, s)
	}
	return Spec{Kind: kind, Args: args}, nil
}

// String returns the notation.
func (s Spec) String() string {
	if s.Args == "" {
		return s.Kind
	}
	return s.Kind + ":" + s.Args
}
