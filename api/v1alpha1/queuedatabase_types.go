package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// MigrationPolicy says who brings the schema in the database to the operator's version.
// +kubebuilder:validation:Enum=Automatic;Manual
type MigrationPolicy string

const (
	// MigrationAutomatic lets the operator migrate.
	MigrationAutomatic MigrationPolicy = "Automatic"
	// MigrationManual leaves it to the user, who runs `jobqueue migrate`.
	MigrationManual MigrationPolicy = "Manual"
)

// QueueDatabaseSpec describes a PostgreSQL database that holds job queues, and what
// of its connections the queues' workers may use.
type QueueDatabaseSpec struct {
	// Where the credentials are.
	// +required
	Credentials DatabaseCredentials `json:"credentials"`

	// The schema that holds the queues' tables and functions.
	// It cannot change: its jobs would stay behind.
	// +optional
	// +kubebuilder:default=jobqueue
	// +kubebuilder:validation:MaxLength=40
	// +kubebuilder:validation:XValidation:rule="self.matches('^[a-z_][a-z0-9_]*$')",messageExpression="'schema must be a plain lower-case PostgreSQL name: letters, digits and _, not starting with a digit; it is ' + self"
	// +kubebuilder:validation:XValidation:rule="!self.startsWith('pg_') && self != 'information_schema'",messageExpression="'schema must not be information_schema or begin with pg_, which PostgreSQL keeps for itself; it is ' + self"
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",messageExpression="'schema cannot be changed: the jobs in it would stay behind; create another QueueDatabase; it is ' + oldSelf + ', not ' + self"
	Schema string `json:"schema,omitempty"`

	// Who migrates the schema: Automatic (the operator does, at once) or Manual
	// (you run `jobqueue migrate`; until then the condition says what is missing).
	// +optional
	// +kubebuilder:default=Automatic
	Migrations MigrationPolicy `json:"migrations,omitempty"`

	// How many connections all workers, reapers and the operator may hold at once.
	// +optional
	// +kubebuilder:default={percent: 80}
	ConnectionBudget ConnectionBudget `json:"connectionBudget,omitzero"`

	// Seconds between two samples of the database. Each sample is one bounded query
	// for all of the database's queues.
	// +optional
	// +kubebuilder:default=5
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=300
	SampleIntervalSeconds int32 `json:"sampleIntervalSeconds,omitempty"`

	// The CronJob that returns expired leases, buries exhausted jobs and applies retention.
	// +optional
	// +kubebuilder:default={}
	Reaper ReaperSpec `json:"reaper,omitempty"`
}

// DatabaseCredentials names the Secret with the connection URI.
type DatabaseCredentials struct {
	// The Secret, in the namespace of the QueueDatabase.
	// +required
	SecretRef SecretKeyReference `json:"secretRef"`
}

// SecretKeyReference names one key of a Secret in the same namespace.
type SecretKeyReference struct {
	// Name of the Secret.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	Name string `json:"name"`

	// Key whose value is a postgres:// URI. CloudNativePG writes "uri".
	// +optional
	// +kubebuilder:default=uri
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	Key string `json:"key,omitempty"`
}

// ConnectionBudget bounds the connections of everything the operator runs on the database.
// It is a number, connections, or a share, percent. Where both are set the number counts: the
// share is there by default, and who patches a number in must not have to take it out.
// +kubebuilder:validation:XValidation:rule="has(self.connections) || has(self.percent)",message="connectionBudget needs connections (a number) or percent (a share)"
type ConnectionBudget struct {
	// A fixed number of connections. It goes before percent.
	// +optional
	// +kubebuilder:validation:Minimum=4
	// +kubebuilder:validation:Maximum=100000
	Connections *int32 `json:"connections,omitempty"`

	// The share, in percent, of max_connections less the reserved ones and less
	// those that other clients hold at the moment. It bounds what all QueueDatabases
	// on the server hold together for this one to get more. It counts where connections
	// is not set.
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=100
	Percent *int32 `json:"percent,omitempty"`
}

// ReaperSpec configures the reaper CronJob. There is one for each QueueDatabase.
type ReaperSpec struct {
	// When it runs, in cron format. Live workers rescue the expired leases of their own
	// queue as well, so this is the net for queues without workers.
	// +optional
	// +kubebuilder:default="* * * * *"
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=100
	Schedule string `json:"schedule,omitempty"`

	// Image of the reaper. Empty: the operator's own image.
	// +optional
	// +kubebuilder:validation:MaxLength=500
	Image string `json:"image,omitempty"`
}

// QueueDatabaseStatus is what the operator saw of the database.
type QueueDatabaseStatus struct {
	// The generation of the spec that this status speaks of.
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`

	// Conditions: Ready, Reconciling, Stalled, DatabaseReachable, BudgetConstrained, HorizonHeld.
	// +optional
	// +listType=map
	// +listMapKey=type
	Conditions []metav1.Condition `json:"conditions,omitempty"`

	// Version of the schema in the database; 0 when there is none.
	// +optional
	SchemaVersion int32 `json:"schemaVersion,omitempty"`

	// What the last sample said of the server's connections, and the budget that follows.
	// +optional
	Connections *DatabaseConnections `json:"connections,omitempty"`

	// Time of the last sample, on the database's clock. Samples are taken all the time;
	// where nothing else has changed, this one is written every five minutes at most.
	// +optional
	LastSampleTime *metav1.Time `json:"lastSampleTime,omitempty"`

	// Connections granted to each JobQueue on this database.
	// +optional
	// +listType=map
	// +listMapKey=name
	Grants []ConnectionGrant `json:"grants,omitempty"`

	// What has kept dead rows of the queues' tables from being removed for longer
	// than five minutes. Absent when nothing has.
	// +optional
	HorizonHolder *HorizonHolder `json:"horizonHolder,omitempty"`
}

// HorizonHolder is what has the oldest snapshot or transaction that vacuum has to mind.
type HorizonHolder struct {
	// session, prepared transaction, replication slot or standby.
	Kind string `json:"kind"`
	// Name of the prepared transaction or of the slot.
	// +optional
	Name string `json:"name,omitempty"`
	// Database of the session or of the prepared transaction.
	// +optional
	Database string `json:"database,omitempty"`
	// Process id in PostgreSQL of the session, or of the walsender of a standby or slot.
	// +optional
	PID int32 `json:"pid,omitempty"`
	// The application_name of that process.
	// +optional
	ApplicationName string `json:"applicationName,omitempty"`
	// User of that process, or owner of the prepared transaction.
	// +optional
	User string `json:"user,omitempty"`
	// Since when, on the database's clock: the start of the session's transaction, the time
	// when a transaction was prepared, or, where PostgreSQL shows no such time, when
	// the operator first saw it.
	Since metav1.Time `json:"since"`
	// The oldest transaction that it still needs, a number of 32 bits.
	Xmin int64 `json:"xmin"`
}

// DatabaseConnections counts a server's connections.
type DatabaseConnections struct {
	// The server's max_connections.
	Max int32 `json:"max"`
	// Those reserved for superusers and other reserved roles.
	Reserved int32 `json:"reserved"`
	// Those that other clients hold, evened out over the latest samples. Workers that
	// this operator does not know of, such as another operator's, are among them.
	Others int32 `json:"others"`
	// Those to this database whose application_name begins with "jobqueue:": of workers,
	// reapers, the operator and the jobqueue commands, in whatever schema.
	InUse int32 `json:"inUse"`
	// The most that workers, reapers and the operator may hold for this QueueDatabase.
	Budget int32 `json:"budget"`
	// The part of the budget that is promised: workers' pools with surge and
	// terminating pods, the reaper and the operator.
	Allocated int32 `json:"allocated"`
	// What is promised in the same way to other QueueDatabases on the server.
	// +optional
	Elsewhere int32 `json:"elsewhere,omitempty"`
	// These other QueueDatabases, as namespace/name.
	// +optional
	// +listType=set
	SharedWith []string `json:"sharedWith,omitempty"`
}

// ConnectionGrant is the share of one JobQueue in the budget.
type ConnectionGrant struct {
	// Name of the JobQueue.
	Name string `json:"name"`
	// Connections granted.
	Connections int32 `json:"connections"`
	// Replicas that fit in them.
	Replicas int32 `json:"replicas"`
}

// QueueDatabase is a PostgreSQL database that holds job queues.
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:shortName=qdb,categories=jobqueue-operator
// +kubebuilder:printcolumn:name="Ready",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].status`
// +kubebuilder:printcolumn:name="Reason",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].reason`
// +kubebuilder:printcolumn:name="Schema",type=integer,JSONPath=`.status.schemaVersion`
// +kubebuilder:printcolumn:name="Budget",type=integer,JSONPath=`.status.connections.budget`
// +kubebuilder:printcolumn:name="Allocated",type=integer,JSONPath=`.status.connections.allocated`
// +kubebuilder:printcolumn:name="In Use",type=integer,JSONPath=`.status.connections.inUse`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
// +kubebuilder:validation:XValidation:rule="size(self.metadata.name) <= 40",message="metadata.name must be at most 40 characters: the reaper's CronJob is named after it"
type QueueDatabase struct {
	metav1.TypeMeta `json:",inline"`
	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// +required
	Spec QueueDatabaseSpec `json:"spec"`
	// +optional
	Status QueueDatabaseStatus `json:"status,omitempty"`
}

// QueueDatabaseList is a list of QueueDatabases.
// +kubebuilder:object:root=true
type QueueDatabaseList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []QueueDatabase `json:"items"`
}
