package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"time"
)

// apiClient asks the API server the few things that starting a cluster needs.
// It reaches into the cluster's network by itself, which is much faster than a
// kubectl process per question.
type apiClient struct {
	base string
	http *http.Client
}

// newAPIClient returns a client with the administrator's certificate.
func (c *Cluster) newAPIClient(sandbox *Sandbox) (*apiClient, error) {
	certificate, err := tls.LoadX509KeyPair(c.path("pki", "admin.crt"), c.path("pki", "admin.key"))
	if err != nil {
		return nil, err
	}
	ca, err := os.ReadFile(c.path("pki", "ca.crt"))
	if err != nil {
		return nil, err
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(ca)
	return &apiClient{base: c.apiServer(), http: &http.Client{
		Timeout: 5 * time.Second,
		Transport: &http.Transport{
			TLSClientConfig: &tls.Config{RootCAs: roots, Certificates: []tls.Certificate{certificate}},
			DialContext: func(_ context.Context, network, address string) (net.Conn, error) {
				return sandbox.dial(network, address)
			},
		},
	}}, nil
}

// get reads an object of the API into the value, when there is one.
func (a *apiClient) get(ctx context.Context, path string, into any) error {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, a.base+path, nil)
	if err != nil {
		return err
	}
	response, err := a.http.Do(request)
	if err != nil {
		return err
	}
	defer func() { _ = response.Body.Close() }()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		return err
	}
	if response.StatusCode != http.StatusOK {
		return fmt.Errorf("the API server answers %s to %s", response.Status, path)
	}
	if into == nil {
		return nil
	}
	return json.Unmarshal(body, into)
}

// ready returns nil once the API server serves.
func (a *apiClient) ready(ctx context.Context) error { return a.get(ctx, "/readyz", nil) }

// nodeReady returns nil once the node takes pods.
func (a *apiClient) nodeReady(ctx context.Context, name string) error {
	var node struct {
		Spec struct {
			Taints []struct{ Key string }
		}
		Status struct {
			Conditions []struct{ Type, Status, Message string }
		}
	}
	if err := a.get(ctx, "/api/v1/nodes/"+name, &node); err != nil {
		return err
	}
	for _, condition := range node.Status.Conditions {
		if condition.Type != "Ready" {
			continue
		}
		if condition.Status != "True" {
			return fmt.Errorf("the node is not Ready: %s", condition.Message)
		}
		// The controller manager takes this taint off a moment after the node
		// has become Ready; until then nothing is scheduled.
		for _, taint := range node.Spec.Taints {
			if taint.Key == "node.kubernetes.io/not-ready" {
				return errors.New("the node is still marked as not ready")
			}
		}
		return nil
	}
	return errors.New("the node has not reported yet")
}
