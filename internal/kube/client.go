// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"errors"
	"fmt"
	"net/http"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/util/flowcontrol"
)

const (
	protobufType = runtime.ContentTypeProtobuf
	jsonType     = runtime.ContentTypeJSON
	// requestRate and requestBurst bound the requests of one node a second, its
	// watches included: a handful at the start, few ever after.
	requestRate  = 20
	requestBurst = 40
	// userAgent is followed by a slash and the version.
	userAgent = "aether-agent"
)

// Client talks to one API server, over one connection as long as that lives.
type Client struct {
	config *rest.Config
	http   *http.Client
	scheme *runtime.Scheme
}

// Connect makes a client by a kubeconfig file; an empty path means the service
// account that is mounted into every pod. version is the agent's, for the user
// agent. Nothing is dialled.
func Connect(kubeconfig, version string) (*Client, error) {
	config, err := loadConfig(kubeconfig)
	if err != nil {
		return nil, err
	}
	config.UserAgent = userAgent + "/" + version
	return NewClient(config)
}

func loadConfig(kubeconfig string) (*rest.Config, error) {
	if kubeconfig == "" {
		config, err := rest.InClusterConfig()
		if errors.Is(err, rest.ErrNotInCluster) {
			return nil, errors.New("no API server: this is no pod of a cluster, and no --kubeconfig is given")
		}
		if err != nil {
			return nil, fmt.Errorf("use the pod's service account: %w", err)
		}
		return config, nil
	}
	file, err := clientcmd.LoadFromFile(kubeconfig)
	if err != nil {
		return nil, fmt.Errorf("read kubeconfig %s: %w", kubeconfig, err)
	}
	config, err := clientcmd.NewDefaultClientConfig(*file, &clientcmd.ConfigOverrides{}).ClientConfig()
	if err != nil {
		return nil, fmt.Errorf("use kubeconfig %s: %w", kubeconfig, err)
	}
	return config, nil
}

// NewClient makes a client. What the configuration says about encodings and
// rates is replaced.
func NewClient(config *rest.Config) (*Client, error) {
	config = rest.CopyConfig(config)
	config.Timeout = 0 // it would end watches
	config.RateLimiter = flowcontrol.NewTokenBucketRateLimiter(requestRate, requestBurst)
	config.WarningHandler = rest.NoWarnings{}
	h, err := rest.HTTPClientFor(config)
	if err != nil {
		return nil, fmt.Errorf("make a client of %s: %w", config.Host, err)
	}
	c := &Client{config: config, http: h, scheme: runtime.NewScheme()}
	for _, add := range []func(*runtime.Scheme) error{corev1.AddToScheme, discoveryv1.AddToScheme, networkingv1.AddToScheme} {
		if err := add(c.scheme); err != nil {
			return nil, fmt.Errorf("register API types: %w", err)
		}
	}
	return c, nil
}

// Server returns the API server's address, as it was configured.
func (c *Client) Server() string { return c.config.Host }

// builtIn returns the REST client of a built-in group, in Protobuf.
func (c *Client) builtIn(v schema.GroupVersion) (*rest.RESTClient, error) {
	return c.rest(v, c.scheme, protobufType, protobufType+","+jsonType)
}

// rest returns the REST client of a group and version.
func (c *Client) rest(v schema.GroupVersion, scheme *runtime.Scheme, contentType, accept string) (*rest.RESTClient, error) {
	config := rest.CopyConfig(c.config)
	config.GroupVersion = &v
	config.APIPath = "/apis"
	if v.Group == "" {
		config.APIPath = "/api"
	}
	config.ContentType, config.AcceptContentTypes = contentType, accept
	config.NegotiatedSerializer = serializer.NewCodecFactory(scheme).WithoutConversion()
	r, err := rest.RESTClientForConfigAndClient(config, c.http)
	if err != nil {
		return nil, fmt.Errorf("make a client of %s: %w", v, err)
	}
	return r, nil
}
