package controllers

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/jobqueue-dev/jobqueue-operator/api/v1alpha1"
	"github.com/jobqueue-dev/jobqueue-operator/controllers/sampler"
)

func TestExamine(t *testing.T) {
	cases := map[string]struct {
		data   map[string][]byte
		reason string
	}{
		"a URL":             {data: map[string][]byte{"uri": []byte("postgres://u:hunter2@h/d")}},
		"no such key":       {data: map[string][]byte{"url": []byte("postgres://u:hunter2@h/d")}, reason: v1alpha1.ReasonSecretInvalid},
		"an empty value":    {data: map[string][]byte{"uri": nil}, reason: v1alpha1.ReasonSecretInvalid},
		"no URL":            {data: map[string][]byte{"uri": []byte("postgres://u:hunter2@h:port/d")}, reason: v1alpha1.ReasonSecretInvalid},
		"something else":    {data: map[string][]byte{"uri": []byte("hunter2")}, reason: v1alpha1.ReasonSecretInvalid},
		"keyword and value": {data: map[string][]byte{"uri": []byte("host=h user=u password=hunter2 dbname=d")}},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			c, err := examine(testDatabase(), &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "secret"}, Data: tc.data})
			if err != nil {
				t.Fatal(err)
			}
			if tc.reason == "" {
				if c.problem != nil || len(c.fingerprint) != 16 {
					t.Errorf("problem %+v, fingerprint %q", c.problem, c.fingerprint)
				}
				return
			}
			if c.problem == nil || c.problem.Reason != tc.reason || strings.Contains(c.problem.Message, "hunter2") {
				t.Errorf("problem %+v", c.problem)
			}
		})
	}
}

func TestFingerprintFollowsTheURLAlone(t *testing.T) {
	of := func(db *v1alpha1.QueueDatabase, secret *corev1.Secret) string {
		c, err := examine(db, secret)
		if err != nil || c.problem != nil {
			t.Fatal(err, c.problem)
		}
		return c.fingerprint
	}
	secret := &corev1.Secret{Data: map[string][]byte{"uri": []byte("postgres://u:p@h/d")}}
	first := of(testDatabase(), secret)
	secret.Data["other"] = []byte("x")
	if of(testDatabase(), secret) != first {
		t.Error("another key changed it")
	}
	secret.Data["uri"] = []byte("postgres://u:q@h/d")
	if of(testDatabase(), secret) == first {
		t.Error("another password did not change it")
	}
}

func TestCredentialsEqual(t *testing.T) {
	missing := func() credentials {
		return credentials{problem: &sampler.Problem{Reason: v1alpha1.ReasonSecretNotFound, Message: "Secret \"s\" does not exist"}}
	}
	found := credentials{url: "postgres://h/d", fingerprint: "a"}
	cases := map[string]struct {
		a, b credentials
		want bool
	}{
		"the same problem, found twice": {a: missing(), b: missing(), want: true},
		"a problem that is gone":        {a: missing(), b: found},
		"another URL":                   {a: found, b: credentials{url: "postgres://h/e", fingerprint: "b"}},
		"the same URL":                  {a: found, b: found, want: true},
		"another problem": {a: missing(), b: credentials{problem: &sampler.Problem{
			Reason: v1alpha1.ReasonSecretInvalid, Message: "Secret \"s\" does not exist"}}},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			if got := tc.a.equal(tc.b); got != tc.want {
				t.Errorf("equal = %v, want %v", got, tc.want)
			}
		})
	}
}
