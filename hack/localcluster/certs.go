package main

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"time"
)

// certificateLifetime is longer than any local cluster should live.
const certificateLifetime = 365 * 24 * time.Hour

// authority signs the certificates of one cluster.
type authority struct {
	dir         string
	certificate *x509.Certificate
	key         crypto.Signer
}

// newAuthority makes a certificate authority and writes it as FILE.crt and
// FILE.key.
func newAuthority(dir, file string) (*authority, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	a := &authority{dir: dir, key: key}
	template := &x509.Certificate{
		Subject:               pkix.Name{CommonName: "jobqueue-localcluster-" + file},
		KeyUsage:              x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature,
		BasicConstraintsValid: true,
		IsCA:                  true,
	}
	a.certificate, err = a.sign(file, template, key)
	return a, err
}

// subject describes who a certificate speaks for.
type subject struct {
	file          string
	commonName    string
	organizations []string
	names         []string
	addresses     []netip.Addr
}

// issue signs a certificate, good for servers and clients, and writes it as
// FILE.crt and FILE.key.
func (a *authority) issue(who subject) error {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return err
	}
	template := &x509.Certificate{
		Subject:     pkix.Name{CommonName: who.commonName, Organization: who.organizations},
		KeyUsage:    x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth, x509.ExtKeyUsageServerAuth},
		DNSNames:    who.names,
	}
	for _, address := range who.addresses {
		template.IPAddresses = append(template.IPAddresses, net.IP(address.AsSlice()))
	}
	_, err = a.sign(who.file, template, key)
	return err
}

// sign completes a template, signs it and writes certificate and key.
func (a *authority) sign(file string, template *x509.Certificate, key *ecdsa.PrivateKey) (*x509.Certificate, error) {
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 120))
	if err != nil {
		return nil, err
	}
	template.SerialNumber = serial
	// A clock that was set back a little must not make the cluster invalid.
	template.NotBefore = time.Now().Add(-time.Hour)
	template.NotAfter = time.Now().Add(certificateLifetime)
	parent := a.certificate
	if parent == nil {
		parent = template
	}
	der, err := x509.CreateCertificate(rand.Reader, template, parent, key.Public(), a.key)
	if err != nil {
		return nil, fmt.Errorf("cannot sign the certificate %s: %w", file, err)
	}
	if err := errors.Join(
		writePEM(filepath.Join(a.dir, file+".crt"), "CERTIFICATE", der, 0o644),
		writeKey(filepath.Join(a.dir, file+".key"), key),
	); err != nil {
		return nil, err
	}
	return x509.ParseCertificate(der)
}

// writeKey writes a private key for its owner's eyes only.
func writeKey(file string, key *ecdsa.PrivateKey) error {
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return err
	}
	return writePEM(file, "PRIVATE KEY", der, 0o600)
}

// writeServiceAccountKeys writes the pair that signs service accounts' tokens.
func writeServiceAccountKeys(dir string) error {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return err
	}
	public, err := x509.MarshalPKIXPublicKey(key.Public())
	if err != nil {
		return err
	}
	return errors.Join(
		writePEM(filepath.Join(dir, "sa.pub"), "PUBLIC KEY", public, 0o644),
		writeKey(filepath.Join(dir, "sa.key"), key),
	)
}

func writePEM(file, kind string, der []byte, mode os.FileMode) error {
	return os.WriteFile(file, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), mode)
}

// writeCertificates makes every certificate and key of the cluster.
func (c *Cluster) writeCertificates() error {
	ca, err := newAuthority(c.path("pki"), "ca")
	if err != nil {
		return err
	}
	local := []netip.Addr{netip.MustParseAddr("127.0.0.1"), c.Addresses.Node}
	for _, who := range []subject{
		{
			file: "apiserver", commonName: "kube-apiserver",
			names:     []string{"kubernetes", "kubernetes.default", "kubernetes.default.svc", "kubernetes.default.svc.cluster.local", "localhost"},
			addresses: append([]netip.Addr{c.Addresses.API}, local...),
		},
		{file: "apiserver-kubelet-client", commonName: "kube-apiserver-kubelet-client", organizations: []string{"system:masters"}},
		{
			file: "kubelet", commonName: "system:node:" + c.nodeName(), organizations: []string{"system:nodes"},
			names: []string{c.nodeName()}, addresses: local,
		},
		{file: "controller-manager", commonName: "system:kube-controller-manager"},
		{file: "scheduler", commonName: "system:kube-scheduler"},
		{file: "proxy", commonName: "system:kube-proxy"},
		{file: "admin", commonName: "jobqueue-localcluster-admin", organizations: []string{"system:masters"}},
	} {
		if err := ca.issue(who); err != nil {
			return err
		}
	}
	// The API server vouches for users towards extension servers with an
	// authority of its own: one that also signed users could be forged.
	frontProxy, err := newAuthority(c.path("pki"), "front-proxy-ca")
	if err != nil {
		return err
	}
	if err := frontProxy.issue(subject{file: "front-proxy-client", commonName: "front-proxy-client"}); err != nil {
		return err
	}
	return writeServiceAccountKeys(c.path("pki"))
}
