// Package scaling decides how many worker pods a queue gets.
//
// [Plan] is a pure function from one [Input] to one [Decision]: it reads no
// clock, asks no server and keeps no state, so that the operator, a simulation
// and a table test all get the same answer from the same numbers.
//
// A decision is a need, which follows from the queue (need.go), and a chain of
// limits (limits.go), each a few lines long, each of which may change the number
// and then leaves its name, the number before and after, and a sentence.
package scaling
