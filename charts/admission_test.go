package charts

import (
	"fmt"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"
	sigsyaml "sigs.k8s.io/yaml"
)

// change sets the value at a dotted path of an object, or removes it when value is nil.
type change struct {
	path  string
	value any
}

func (c change) apply(object map[string]any) error {
	keys := strings.Split(c.path, ".")
	parent := object
	for _, key := range keys[:len(keys)-1] {
		child, ok := parent[key].(map[string]any)
		if !ok {
			child = map[string]any{}
			parent[key] = child
		}
		parent = child
	}
	last := keys[len(keys)-1]
	if c.value == nil {
		delete(parent, last)
		return nil
	}
	parsed, err := sigsyaml.Marshal(c.value)
	if err != nil {
		return err
	}
	var value any
	if err := sigsyaml.Unmarshal(parsed, &value); err != nil {
		return err
	}
	if f, ok := value.(float64); ok && f == float64(int64(f)) {
		value = int64(f)
	}
	parent[last] = value
	return nil
}

// sample reads the object that config/samples gives of a kind.
func sample(t *testing.T, kind, namespace string) unstructured.Unstructured {
	t.Helper()
	found := kustomization(t, "../config/samples").ofKind(kind)
	if len(found) != 1 {
		t.Fatalf("%d samples of kind %s, want 1", len(found), kind)
	}
	found[0].SetNamespace(namespace)
	return found[0]
}

func changed(t *testing.T, object unstructured.Unstructured, changes []change) *unstructured.Unstructured {
	t.Helper()
	result := object.DeepCopy()
	for _, c := range changes {
		if err := c.apply(result.Object); err != nil {
			t.Fatal(err)
		}
	}
	return result
}

type admissionCase struct {
	// before is applied to the sample, which is then created; nil means that the case is
	// about a creation.
	before []change
	// changes are what the request changes.
	changes []change
	// want is a part of the refusal; empty means that the request is accepted.
	want string
}

func testAdmission(t *testing.T, object unstructured.Unstructured, cases map[string]admissionCase) {
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			var err error
			if tc.before == nil {
				err = k8s.Create(t.Context(), changed(t, object, tc.changes), client.DryRunAll)
			} else {
				stored := changed(t, object, tc.before)
				if err := k8s.Create(t.Context(), stored); err != nil {
					t.Fatalf("create what is to be changed: %v", err)
				}
				err = k8s.Update(t.Context(), changed(t, *stored, tc.changes), client.DryRunAll)
				if deleteErr := k8s.Delete(t.Context(), stored); deleteErr != nil {
					t.Fatal(deleteErr)
				}
			}
			switch {
			case tc.want == "" && err != nil:
				t.Errorf("refused: %v", err)
			case tc.want != "" && err == nil:
				t.Errorf("accepted, want %q", tc.want)
			case tc.want != "" && !strings.Contains(err.Error(), tc.want):
				t.Errorf("refused with %q, want %q", err, tc.want)
			}
		})
	}
}

// TestAdmission proves that the API server itself refuses what cannot work, in words that
// say what to do, and fills in what is left out.
func TestAdmission(t *testing.T) {
	installKinds(t)
	t.Run("JobQueue", testJobQueueAdmission)
	t.Run("QueueDatabase", testQueueDatabaseAdmission)
	t.Run("defaults", testDefaults)
}

func testJobQueueAdmission(t *testing.T) {
	makeNamespace(t, "jobqueues")
	unchanged := []change{}
	testAdmission(t, sample(t, "JobQueue", "jobqueues"), map[string]admissionCase{
		"the sample": {},
		"every field": {changes: []change{
			{"spec.queueName", "emails.eu_1"}, {"spec.suspend", true}, {"spec.replicas", 0},
			{"spec.timeoutSeconds", 300}, {"spec.lease.durationSeconds", 20}, {"spec.lease.heartbeatSeconds", 10},
			{"spec.retry.maxAttempts", 1}, {"spec.retry.backoffSeconds", 7}, {"spec.retry.backoffMaxSeconds", 7}, {"spec.retry.jitterPercent", 0},
			{"spec.worker.slots", 8}, {"spec.batch.size", 8}, {"spec.maxPayloadBytes", 1024},
			{"spec.retention.finishedSeconds", 0}, {"spec.retention.deadSeconds", 0},
			{"spec.scaling.minReplicas", 3}, {"spec.scaling.maxReplicas", 3}, {"spec.scaling.targetAgeSeconds", 1},
			{"spec.scaling.scaleDownStabilizationSeconds", 0},
			{"spec.connections.perReplica", 2}, {"spec.connections.weight", 5},
			{"spec.worker.template.spec.terminationGracePeriodSeconds", 301},
			{"spec.worker.template.metadata.annotations", map[string]string{"example.com/a": "b"}},
		}},

		"heartbeat over half of the lease": {
			changes: []change{{"spec.lease.durationSeconds", 30}, {"spec.lease.heartbeatSeconds", 16}},
			want:    "lease.heartbeatSeconds must be at most half of lease.durationSeconds",
		},
		"a lease too short for the default heartbeat": {
			changes: []change{{"spec.lease.durationSeconds", 19}},
			want:    "lease.heartbeatSeconds must be at most half of lease.durationSeconds",
		},
		"grace not above the timeout": {
			changes: []change{{"spec.timeoutSeconds", 120}, {"spec.worker.template.spec.terminationGracePeriodSeconds", 120}},
			want:    "worker.template.spec.terminationGracePeriodSeconds must be greater than timeoutSeconds",
		},
		"grace not above the default timeout": {
			changes: []change{{"spec.worker.template.spec.terminationGracePeriodSeconds", 30}},
			want:    "worker.template.spec.terminationGracePeriodSeconds must be greater than timeoutSeconds",
		},
		"a batch below the slots": {
			changes: []change{{"spec.batch.size", 7}, {"spec.worker.slots", 8}},
			want:    "batch.size must not be below worker.slots",
		},
		"a batch below the default slots": {
			changes: []change{{"spec.batch.size", 9}},
			want:    "batch.size must not be below worker.slots",
		},
		"backoff above its ceiling": {
			changes: []change{{"spec.retry.backoffSeconds", 10}, {"spec.retry.backoffMaxSeconds", 9}},
			want:    "retry.backoffSeconds must not exceed retry.backoffMaxSeconds",
		},
		"minimum above maximum": {
			changes: []change{{"spec.scaling.minReplicas", 4}, {"spec.scaling.maxReplicas", 3}},
			want:    "scaling.minReplicas must not exceed scaling.maxReplicas",
		},
		"minimum above the default maximum": {
			changes: []change{{"spec.scaling.minReplicas", 11}},
			want:    "scaling.minReplicas must not exceed scaling.maxReplicas",
		},
		"the longest name":  {changes: []change{{"metadata.name", strings.Repeat("a", 52)}}},
		"a name too long":   {changes: []change{{"metadata.name", strings.Repeat("a", 53)}}, want: "metadata.name must be at most 52 characters"},
		"no database":       {changes: []change{{"spec.databaseRef", nil}}, want: "spec.databaseRef: Required value"},
		"an empty database": {changes: []change{{"spec.databaseRef.name", ""}}, want: "spec.databaseRef.name"},
		"no worker":         {changes: []change{{"spec.worker", nil}}, want: "spec.worker: Required value"},
		"no pod template":   {changes: []change{{"spec.worker.template", nil}}, want: "spec.worker.template: Required value"},
		"a template without a pod": {
			changes: []change{{"spec.worker.template", map[string]any{}}},
			want:    "worker.template.spec must name the worker's container",
		},
		"a pod without containers": {
			changes: []change{{"spec.worker.template.spec.containers", []any{}}},
			want:    "worker.template.spec must name the worker's container",
		},
		"slots below one":                {changes: []change{{"spec.worker.slots", 0}}, want: "spec.worker.slots"},
		"one connection is too few":      {changes: []change{{"spec.connections.perReplica", 1}}, want: "spec.connections.perReplica"},
		"a queue name in capitals":       {changes: []change{{"spec.queueName", "Emails"}}, want: "queueName must consist of lower-case letters"},
		"an empty queue name":            {changes: []change{{"spec.queueName", ""}}, want: "queueName must consist of lower-case letters"},
		"a queue name of 64 characters":  {changes: []change{{"spec.queueName", strings.Repeat("a", 64)}}, want: "spec.queueName: Too long"},
		"a timeout of more than one day": {changes: []change{{"spec.timeoutSeconds", 86401}}, want: "spec.timeoutSeconds"},

		"a policy may change": {before: unchanged, changes: []change{{"spec.timeoutSeconds", 20}, {"spec.worker.slots", 3}}},
		"the database may not": {
			before: unchanged, changes: []change{{"spec.databaseRef.name", "other"}},
			want: "databaseRef cannot be changed",
		},
		"the queue's name may not": {
			before: []change{{"spec.queueName", "a"}}, changes: []change{{"spec.queueName", "b"}},
			want: "spec.queueName cannot be changed",
		},
		"nor be given later": {
			before: unchanged, changes: []change{{"spec.queueName", "b"}},
			want: "spec.queueName cannot be changed",
		},
		"nor be taken away": {
			before: []change{{"spec.queueName", "a"}}, changes: []change{{"spec.queueName", nil}},
			want: "spec.queueName cannot be changed",
		},
		"its default may be spelled out": {before: unchanged, changes: []change{{"spec.queueName", "emails"}}},
	})
}

func testQueueDatabaseAdmission(t *testing.T) {
	makeNamespace(t, "queuedatabases")
	unchanged := []change{}
	testAdmission(t, sample(t, "QueueDatabase", "queuedatabases"), map[string]admissionCase{
		"the sample":              {},
		"nothing but credentials": {changes: []change{{"spec.connectionBudget", nil}}},
		"every field": {changes: []change{
			{"spec.credentials.secretRef.key", "url"}, {"spec.schema", "jobs_2"}, {"spec.migrations", "Manual"},
			{"spec.connectionBudget", map[string]any{"connections": 40}}, {"spec.sampleIntervalSeconds", 1},
			{"spec.reaper.schedule", "*/5 * * * *"}, {"spec.reaper.image", "registry.example/jobqueue:1"},
		}},
		"a number patched in beside the default share": {
			before:  []change{{"spec.connectionBudget", nil}},
			changes: []change{{"spec.connectionBudget.connections", 40}},
		},
		"neither": {
			changes: []change{{"spec.connectionBudget", map[string]any{}}},
			want:    "connectionBudget needs connections (a number) or percent (a share)",
		},
		"more than all":         {changes: []change{{"spec.connectionBudget.percent", 101}}, want: "spec.connectionBudget.percent"},
		"a schema to be quoted": {changes: []change{{"spec.schema", "Job-Queue"}}, want: "schema must be a plain lower-case PostgreSQL name"},
		"a schema with a digit first": {
			changes: []change{{"spec.schema", "1a"}},
			want:    "schema must be a plain lower-case PostgreSQL name",
		},
		"the schema may not change": {
			before: unchanged, changes: []change{{"spec.schema", "other"}},
			want: "schema cannot be changed",
		},
		"the budget may":       {before: unchanged, changes: []change{{"spec.connectionBudget.percent", 50}}},
		"another policy":       {changes: []change{{"spec.migrations", "Sometimes"}}, want: "spec.migrations: Unsupported value"},
		"the longest name":     {changes: []change{{"metadata.name", strings.Repeat("a", 40)}}},
		"a name too long":      {changes: []change{{"metadata.name", strings.Repeat("a", 41)}}, want: "metadata.name must be at most 40 characters"},
		"no secret":            {changes: []change{{"spec.credentials.secretRef", nil}}, want: "spec.credentials.secretRef: Required value"},
		"samples out of bound": {changes: []change{{"spec.sampleIntervalSeconds", 301}}, want: "spec.sampleIntervalSeconds"},
	})
}

// testDefaults shows what a minimal JobQueue and QueueDatabase become.
func testDefaults(t *testing.T) {
	makeNamespace(t, "defaults")
	cases := map[string]map[string]string{
		"JobQueue": {
			".spec.timeoutSeconds": "60", ".spec.lease.durationSeconds": "30", ".spec.lease.heartbeatSeconds": "10",
			".spec.retry.maxAttempts": "5", ".spec.worker.slots": "10", ".spec.scaling.minReplicas": "0",
			".spec.scaling.maxReplicas": "10", ".spec.scaling.targetAgeSeconds": "30", ".spec.connections.perReplica": "3",
			".spec.replicas": "",
		},
		"QueueDatabase": {
			".spec.schema": "jobqueue", ".spec.migrations": "Automatic", ".spec.connectionBudget.percent": "80",
			".spec.credentials.secretRef.key": "uri", ".spec.reaper.schedule": "* * * * *", ".spec.sampleIntervalSeconds": "5",
		},
	}
	for kind, fields := range cases {
		object := sample(t, kind, "defaults")
		if err := k8s.Create(t.Context(), &object); err != nil {
			t.Fatal(err)
		}
		for path, want := range fields {
			value, _, err := unstructured.NestedFieldNoCopy(object.Object, strings.Split(path[1:], ".")...)
			if err != nil {
				t.Fatal(err)
			}
			got := ""
			if value != nil {
				got = fmt.Sprint(value)
			}
			if got != want {
				t.Errorf("%s: %s is %q, want %q", kind, path, got, want)
			}
		}
	}
}
