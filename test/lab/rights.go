// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"context"
	"errors"
	"fmt"
	"os"

	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/discovery/cached/memory"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/restmapper"
	"k8s.io/client-go/tools/clientcmd"
)

// prepareCredentials makes certificates, the kubeconfigs of who is known by one,
// and this process's own clients, which dial from the control plane's namespace.
func (c *Cluster) prepareCredentials() error {
	var err error
	if c.ca, err = newAuthority(); err != nil {
		return err
	}
	if err := c.cfg.writePKI(c.ca); err != nil {
		return err
	}
	for who, user := range map[string]string{
		"kube-controller-manager": "system:kube-controller-manager", "kube-proxy": "system:kube-proxy",
	} {
		p, err := c.ca.client(user)
		if err != nil {
			return err
		}
		if err := writeKubeconfig(c.paths.kubeconfig(who), apiAddress(), c.ca.pem, who, credential{pair: p}); err != nil {
			return err
		}
	}
	admin, err := c.ca.client("lab-admin", "system:masters")
	if err != nil {
		return err
	}
	c.rest = &rest.Config{
		Host: "https://" + apiAddress(), Dial: dialIn(c.cfg.controlNS()), QPS: -1, UserAgent: "aether-lab",
		TLSClientConfig: rest.TLSClientConfig{CAData: c.ca.pem, CertData: admin.cert, KeyData: admin.key},
	}
	if c.http, err = rest.HTTPClientFor(c.rest); err != nil {
		return fmt.Errorf("make client: %w", err)
	}
	if c.client, err = kubernetes.NewForConfigAndClient(c.rest, c.http); err != nil {
		return fmt.Errorf("make client: %w", err)
	}
	if c.dynamic, err = dynamic.NewForConfigAndClient(c.rest, c.http); err != nil {
		return fmt.Errorf("make client: %w", err)
	}
	c.mapper = restmapper.NewDeferredDiscoveryRESTMapper(memory.NewMemCacheClient(c.client.Discovery()))
	return nil
}

// kubeconfigAt writes the administrator's kubeconfig for the host: address is where
// kube-apiserver is found there.
func (c *Cluster) kubeconfigAt(address string) error {
	admin := pair{c.rest.CertData, c.rest.KeyData}
	return writeKubeconfig(c.Kubeconfig(), address, c.ca.pem, "lab-admin", credential{pair: admin})
}

// agentSource returns the agent's flags for this cluster.
func (c *Cluster) agentSource() []string {
	return []string{"--kubeconfig", c.paths.kubeconfig("aether-agent")}
}

// agentToken is how long the agent's token lasts, in seconds: longer than a lab.
const agentToken = 24 * 60 * 60

// grantAgent applies the agent's ServiceAccount and roles and writes the agent's
// kubeconfig with a token of that account: it runs under the rights that the
// product ships, and under no others.
func (c *Cluster) grantAgent(ctx context.Context) error {
	b, err := os.ReadFile(c.cfg.AgentRights)
	if err != nil {
		return fmt.Errorf("read the agent's rights: %w", err)
	}
	account, err := c.applyRights(ctx, b)
	if err != nil {
		return fmt.Errorf("grant the agent the rights of %s: %w", c.cfg.AgentRights, err)
	}
	seconds := int64(agentToken)
	token, err := c.client.CoreV1().ServiceAccounts(account.GetNamespace()).CreateToken(ctx, account.GetName(),
		&authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{ExpirationSeconds: &seconds}}, metav1.CreateOptions{})
	if err != nil {
		return fmt.Errorf("ask for a token of the agent: %w", err)
	}
	return writeKubeconfig(c.paths.kubeconfig("aether-agent"), apiAddress(), c.ca.pem, "aether-agent", credential{token: token.Status.Token})
}

// applyRights applies a manifest of roles and returns the ServiceAccount in it,
// whose namespace it makes.
func (c *Cluster) applyRights(ctx context.Context, yaml []byte) (account *unstructured.Unstructured, err error) {
	objects, err := decode(yaml)
	if err != nil {
		return nil, err
	}
	for _, o := range objects {
		if o.GetKind() == "ServiceAccount" {
			account = o
		}
	}
	if account == nil {
		return nil, errors.New("there is no ServiceAccount in it")
	}
	if account.GetNamespace() == "" {
		account.SetNamespace("default")
	}
	if err := c.CreateNamespace(ctx, account.GetNamespace()); err != nil {
		return nil, err
	}
	for _, o := range objects {
		if err := c.applyObject(ctx, o); err != nil {
			return nil, err
		}
	}
	return account, nil
}

// AgentMay asks kube-apiserver, with the agent's own kubeconfig, whether the agent
// may do something in all namespaces.
func (c *Cluster) AgentMay(ctx context.Context, verb, group, resource string) (bool, error) {
	conf, err := clientcmd.BuildConfigFromFlags("", c.paths.kubeconfig("aether-agent"))
	if err != nil {
		return false, fmt.Errorf("read the agent's kubeconfig: %w", err)
	}
	conf.Dial = dialIn(c.cfg.controlNS())
	made, err := rest.HTTPClientFor(conf)
	if err != nil {
		return false, fmt.Errorf("make client: %w", err)
	}
	defer made.CloseIdleConnections()
	client, err := kubernetes.NewForConfigAndClient(conf, made)
	if err != nil {
		return false, fmt.Errorf("make client: %w", err)
	}
	review, err := client.AuthorizationV1().SelfSubjectAccessReviews().Create(ctx, &authorizationv1.SelfSubjectAccessReview{
		Spec: authorizationv1.SelfSubjectAccessReviewSpec{ResourceAttributes: &authorizationv1.ResourceAttributes{
			Verb: verb, Group: group, Resource: resource,
		}},
	}, metav1.CreateOptions{})
	if err != nil {
		return false, fmt.Errorf("ask what the agent may do: %w", err)
	}
	return review.Status.Allowed, nil
}
