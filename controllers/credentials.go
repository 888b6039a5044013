package controllers

import (
	"context"
	"crypto/pbkdf2"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"sync"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/jobqueue-dev/jobqueue-operator/api/v1alpha1"
	"github.com/jobqueue-dev/jobqueue-operator/controllers/sampler"
)

const (
	defaultSchema    = "jobqueue"
	defaultSecretKey = "uri"
	// fingerprintRounds makes guessing a password from its fingerprint slow.
	fingerprintRounds = 50_000
)

func schemaOf(db *v1alpha1.QueueDatabase) string {
	if db.Spec.Schema != "" {
		return db.Spec.Schema
	}
	return defaultSchema
}

func secretKeyOf(db *v1alpha1.QueueDatabase) string {
	if db.Spec.Credentials.SecretRef.Key != "" {
		return db.Spec.Credentials.SecretRef.Key
	}
	return defaultSecretKey
}

// credentials is what is known of a database's Secret. It is a plain value; the
// URL in it goes to the sampler and nowhere else.
type credentials struct {
	url string
	// fingerprint changes when the URL does.
	fingerprint string
	// problem is why there is no URL.
	problem *sampler.Problem
}

// equal compares by value: a problem found again is the same problem. Announcing it
// as a change would reconcile the database at once, and so for ever.
func (c credentials) equal(other credentials) bool {
	same := c.problem == other.problem ||
		c.problem != nil && other.problem != nil && *c.problem == *other.problem
	return same && c.url == other.url && c.fingerprint == other.fingerprint
}

// credentialStore remembers what was read, so that a Secret is read again only
// when its metadata says that it has changed.
type credentialStore struct {
	cached client.Reader // of metadata
	live   client.Reader

	mu    sync.Mutex
	known map[types.NamespacedName]knownSecret
}

type knownSecret struct {
	version string
	value   credentials
}

func newCredentialStore(cached, live client.Reader) *credentialStore {
	return &credentialStore{cached: cached, live: live, known: map[types.NamespacedName]knownSecret{}}
}

// read returns the credentials of a database; an error is one of the API server's.
func (s *credentialStore) read(ctx context.Context, db *v1alpha1.QueueDatabase) (credentials, error) {
	name := types.NamespacedName{Namespace: db.Namespace, Name: db.Spec.Credentials.SecretRef.Name}
	meta := &metav1.PartialObjectMetadata{}
	meta.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("Secret"))
	if err := s.cached.Get(ctx, name, meta); err != nil {
		return s.absent(db, name, err)
	}
	version := fmt.Sprint(meta.UID, meta.ResourceVersion, name.Name, secretKeyOf(db))
	if c, ok := s.find(keyOf(db), version); ok {
		return c, nil
	}
	secret := &corev1.Secret{}
	if err := s.live.Get(ctx, name, secret); err != nil {
		return s.absent(db, name, err)
	}
	c, err := examine(db, secret)
	if err != nil {
		return credentials{}, err
	}
	s.keep(keyOf(db), version, c)
	return c, nil
}

// absent turns "not found" into a finding.
func (s *credentialStore) absent(db *v1alpha1.QueueDatabase, name types.NamespacedName, err error) (credentials, error) {
	if !apierrors.IsNotFound(err) {
		return credentials{}, fmt.Errorf("read Secret %q: %w", name.Name, err)
	}
	c := credentials{problem: &sampler.Problem{
		Reason:  v1alpha1.ReasonSecretNotFound,
		Message: fmt.Sprintf("Secret %q does not exist", name.Name),
	}}
	s.keep(keyOf(db), "", c)
	return c, nil
}

// examine checks a Secret and takes the fingerprint of its URL.
func examine(db *v1alpha1.QueueDatabase, secret *corev1.Secret) (credentials, error) {
	key := secretKeyOf(db)
	invalid := func(format string, args ...any) credentials {
		return credentials{problem: &sampler.Problem{
			Reason:  v1alpha1.ReasonSecretInvalid,
			Message: fmt.Sprintf("Secret %q: ", secret.Name) + fmt.Sprintf(format, args...),
		}}
	}
	value, ok := secret.Data[key]
	if !ok {
		return invalid("it has no key %q", key), nil
	}
	if _, err := sampler.ParseURL(string(value)); err != nil {
		return invalid("key %q: %v", key, err), nil
	}
	sum, err := pbkdf2.Key(sha256.New, string(value), []byte(db.UID), fingerprintRounds, 8)
	if err != nil {
		return credentials{}, fmt.Errorf("fingerprint: %w", err)
	}
	return credentials{url: string(value), fingerprint: hex.EncodeToString(sum)}, nil
}

func (s *credentialStore) find(db types.NamespacedName, version string) (credentials, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	k, ok := s.known[db]
	return k.value, ok && k.version == version
}

// last returns what was read last; false before the first time.
func (s *credentialStore) last(db types.NamespacedName) (credentials, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	k, ok := s.known[db]
	return k.value, ok
}

func (s *credentialStore) keep(db types.NamespacedName, version string, c credentials) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.known[db] = knownSecret{version: version, value: c}
}

func (s *credentialStore) forget(db types.NamespacedName) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.known, db)
}
