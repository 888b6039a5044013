// Package sampler is the operator's only way to the databases.
//
// A [Hub] runs one goroutine per database. It holds one connection to work with
// and one that listens, reads one sample of all queues at every interval and
// whenever a notification wakes it, writes the queues' policies, and migrates the
// schema. What it found it publishes as an immutable [State]; then it tells its
// subscribers. Reconcilers read states and leave wishes behind, and never wait
// for a database.
package sampler
