// Package chart draws what the simulator found: for each workload, delay against
// notifications, where better is down and to the left.
package chart
