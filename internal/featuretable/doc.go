// Command featuretable writes the table of features into README.md and FEATURES.md:
// what this device has beside what others have, with the tests that show it.
//
// What the device has is not written down anywhere: the command asks a device for
// its offer, over a socket as a front-end does, and the control queue's decoder for
// the commands that it knows. What others have is in peers.txt, and the names of
// tests, and the reasons for what stays out, in ours.go. A feature that comes or goes
// therefore changes the table, and one without a test, or without a reason, is an
// error.
package main

//go:generate go run .
