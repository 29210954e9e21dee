// Package archtest asserts what ARCHITECTURE.md says of the module's shape: who
// imports whom, where unsafe may be, how long a file may be, and that each
// package introduces itself. It has tests only; they parse the module's tree,
// so a new folder is under them from its first file.
package archtest
