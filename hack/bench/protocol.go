package main

// A contender runs in processes of its own, so that no runtime is shared. The bench
// starts them, each with one of the roles below and a spec in JSON as its last
// argument. They say what happens on standard output, an event in JSON per line, and
// read "go" and "stop" on standard input, whose end means that the bench is gone.

// Roles of a contender's process.
const (
	roleSetup   = "setup"   // makes the tables and the queues, and ends
	roleProduce = "produce" // says ready, waits for go, enqueues, says done, and ends
	roleWork    = "work"    // says ready, waits for go, works until stop, says end
)

// Modes of a contender.
const (
	modeDefault = ""       // what its documentation starts with
	modeFast    = "fast"   // its documented settings for the most jobs per second
	modePrompt  = "prompt" // its documented settings for the least latency, where these differ
	modeBatch   = "batch"  // a transaction of ours is one batch of statements
)

// defaultQueue is the queue of every measurement that needs one only.
const defaultQueue = "bench"

// Spec tells a contender's process what to do.
type Spec struct {
	Program string   `json:"program"`
	Mode    string   `json:"mode"`
	Role    string   `json:"role"`
	URL     string   `json:"url"`
	Queues  []string `json:"queues"`
	// Workers is how many jobs a process runs at once, of ours and of River; 0 leaves
	// it to the mode.
	Workers int `json:"workers"`
	// SchemaFile is the SQL of a contender that leaves its tables to its users.
	SchemaFile string `json:"schemaFile"`

	// Jobs is how many to enqueue, PayloadBytes the size of each payload's JSON.
	Jobs         int `json:"jobs"`
	PayloadBytes int `json:"payloadBytes"`
	// Bulk is how many are enqueued by one call; 1 is a transaction each.
	Bulk int `json:"bulk"`
	// Order asks for a row in the table orders, of the producer's own, in each job's
	// transaction.
	Order bool `json:"order"`
	// Connections is how many producers enqueue side by side.
	Connections int `json:"connections"`
	// Rate is how many jobs to enqueue per second; 0 is as many as possible.
	Rate float64 `json:"rate"`

	// HandlerMillis is how long a handler of ours waits.
	HandlerMillis int `json:"handlerMillis"`
	// Latencies asks a worker to note the time from the payload's to the handler's start.
	Latencies bool `json:"latencies"`
	// Claims asks a worker of ours to note the round trip of every claim.
	Claims bool `json:"claims"`
}

// Event is a line of a contender's process.
type Event struct {
	// Event is ready, ran, done, end or error.
	Event string `json:"event"`
	// Ran is how many handlers have returned so far.
	Ran int64 `json:"ran,omitempty"`
	// Seconds is how long a producer took.
	Seconds float64 `json:"seconds,omitempty"`
	// LatenciesMicros and ClaimsMicros are what a worker noted.
	LatenciesMicros []int64 `json:"latencies,omitempty"`
	ClaimsMicros    []int64 `json:"claims,omitempty"`
	Error           string  `json:"error,omitempty"`
}

// Payload is the payload of every job.
type Payload struct {
	// At is when the producer was about to enqueue it, in microseconds since 1970.
	At int64 `json:"at"`
	// Pad brings the JSON to its size.
	Pad string `json:"pad"`
}
