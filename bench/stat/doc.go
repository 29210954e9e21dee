// Package stat has what the reports of all measurements share: medians with their
// ranges, and on what machine the numbers were taken.
package stat
