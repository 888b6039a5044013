// Package budget shares a server's connections between the queues of its databases.
//
// The ledger counts connections, not replicas, and counts every pod that exists
// or may exist: ready, starting and terminating ones, and those that a rollout
// may add. What a pod that is going away still holds cannot be promised to
// another, so a queue grows only into connections that nobody holds, and a share
// that was lent comes back as its pods drain.
//
// Everything here is pure and deterministic; ties are broken by name.
package budget
