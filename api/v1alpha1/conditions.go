package v1alpha1

// Condition types. Ready, Reconciling and Stalled follow the kstatus convention,
// so that GitOps tools read health without a plug-in: Reconciling and Stalled are
// present only while they are true.
const (
	// ConditionReady is true when the spec is in force: for a JobQueue, the policy
	// is in the database and the workers are as decided; for a QueueDatabase,
	// the database answers and its schema fits.
	ConditionReady = "Ready"
	// ConditionReconciling is true while work towards the spec goes on.
	ConditionReconciling = "Reconciling"
	// ConditionStalled is true when the spec cannot be met without a change by the user.
	ConditionStalled = "Stalled"
	// ConditionDatabaseReachable is true when the latest sample of the database was read.
	ConditionDatabaseReachable = "DatabaseReachable"
	// ConditionScalingActive is true when replicas follow the queue's age.
	ConditionScalingActive = "ScalingActive"
	// ConditionScalingLimited is true when a limit changed what the need asked for.
	ConditionScalingLimited = "ScalingLimited"
	// ConditionBudgetConstrained is true when the connection budget cut a need or
	// cannot hold the minimums.
	ConditionBudgetConstrained = "BudgetConstrained"
	// ConditionSuspended is true while no new job is claimed.
	ConditionSuspended = "Suspended"
	// ConditionJobsUnhandled is true when jobs wait whose kind no worker handles. They
	// hold the oldest age, and with it the replicas, up.
	ConditionJobsUnhandled = "JobsUnhandled"
	// ConditionHorizonHeld is true while something has kept an old snapshot or
	// transaction for so long that dead rows of the queues' tables pile up.
	ConditionHorizonHeld = "HorizonHeld"
)

// Reasons of conditions and events.
const (
	ReasonReady                = "Ready"
	ReasonProgressing          = "Progressing"
	ReasonSecretNotFound       = "SecretNotFound"
	ReasonSecretInvalid        = "SecretInvalid"
	ReasonConnected            = "Connected"
	ReasonConnectionFailed     = "ConnectionFailed"
	ReasonAuthenticationFailed = "AuthenticationFailed"
	ReasonTooManyConnections   = "TooManyConnections"
	ReasonSchemaMissing        = "SchemaMissing"
	ReasonSchemaOutdated       = "SchemaOutdated"
	ReasonSchemaTooNew         = "SchemaTooNew"
	ReasonMigrationFailed      = "MigrationFailed"
	ReasonDatabaseNotFound     = "QueueDatabaseNotFound"
	ReasonDatabaseNotReady     = "QueueDatabaseNotReady"
	ReasonQueueOwned           = "QueueOwnedByAnother"
	ReasonPolicyRefused        = "PolicyRefused"
	ReasonApplyFailed          = "ApplyFailed"
	ReasonReaperFailing        = "ReaperFailing"
	ReasonSampleStale          = "SampleStale"
	ReasonSampleFresh          = "SampleFresh"
	ReasonManualReplicas       = "ManualReplicas"
	ReasonSuspended            = "Suspended"
	ReasonResumed              = "Resumed"
	ReasonWithinLimits         = "WithinLimits"
	ReasonWithinBudget         = "WithinBudget"
	ReasonBudgetExhausted      = "BudgetExhausted"
	ReasonBudgetOverdrawn      = "BudgetOverdrawn"
	ReasonMinimumsExceedBudget = "MinimumsExceedBudget"
	ReasonScaled               = "Scaled"
	ReasonUnknownKind          = "UnknownKind"
	ReasonKindsKnown           = "KindsKnown"
	ReasonOldSession           = "OldSession"
	ReasonPreparedTransaction  = "PreparedTransaction"
	ReasonReplicationSlot      = "ReplicationSlot"
	ReasonStandby              = "Standby"
	ReasonHorizonAdvances      = "HorizonAdvances"
)
