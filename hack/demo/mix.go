package main

import "github.com/jobqueue-dev/jobqueue-operator/queue"

// mix is a set of jobs with a known outcome.
type mix struct {
	jobs            []queue.NewJob
	succeeds, dies  int64
	failingAttempts int64
}

// makeMix returns total jobs of mixed duration: 1 % can never succeed, 5 % fail once or
// twice before they do, the others sleep 50 to 350 ms, 200 ms on average.
func makeMix(total int) mix {
	m := mix{jobs: make([]queue.NewJob, 0, total)}
	for i := range total {
		switch {
		case i%100 == 99:
			m.jobs = append(m.jobs, queue.NewJob{Kind: "permanent", Payload: map[string]int{}})
			m.dies++
		case i%20 == 10:
			times := 1 + i%3/2
			m.jobs = append(m.jobs, queue.NewJob{Kind: "fail", Payload: map[string]int{"times": times}})
			m.succeeds++
			m.failingAttempts += int64(times)
		default:
			// 37 has no factor in common with 61, so that all lengths are equally frequent.
			m.jobs = append(m.jobs, queue.NewJob{Kind: "sleep", Payload: map[string]int{"milliseconds": 50 + i*37%61*5}})
			m.succeeds++
		}
	}
	return m
}
