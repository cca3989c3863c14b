// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"net/netip"
	"os"
	"time"

	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
)

// certificateLife is longer than any lab.
const certificateLife = 30 * 24 * time.Hour

// authority signs the cluster's certificates. It exists for the life of the lab
// and its key never leaves this process.
type authority struct {
	key  crypto.Signer
	cert *x509.Certificate
	pem  []byte
}

func newAuthority() (*authority, error) {
	key, err := newKey()
	if err != nil {
		return nil, err
	}
	template := &x509.Certificate{
		Subject: pkix.Name{CommonName: "aether-lab"}, IsCA: true, BasicConstraintsValid: true,
		KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature,
	}
	a := &authority{key: key, cert: template}
	if a.pem, err = a.sign(template, key.Public()); err != nil {
		return nil, err
	}
	block, _ := pem.Decode(a.pem)
	if a.cert, err = x509.ParseCertificate(block.Bytes); err != nil {
		return nil, fmt.Errorf("read back the authority's certificate: %w", err)
	}
	return a, nil
}

func newKey() (*ecdsa.PrivateKey, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("make key: %w", err)
	}
	return key, nil
}

// sign fills in what all certificates share.
func (a *authority) sign(template *x509.Certificate, public crypto.PublicKey) ([]byte, error) {
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 120))
	if err != nil {
		return nil, fmt.Errorf("make serial number: %w", err)
	}
	template.SerialNumber = serial
	template.NotBefore, template.NotAfter = time.Now().Add(-time.Minute), time.Now().Add(certificateLife)
	der, err := x509.CreateCertificate(rand.Reader, template, a.cert, public, a.key)
	if err != nil {
		return nil, fmt.Errorf("sign certificate of %s: %w", template.Subject.CommonName, err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), nil
}

// pair is a certificate with its key, both as PEM.
type pair struct{ cert, key []byte }

// client makes what a user proves itself with: its name and groups.
func (a *authority) client(user string, groups ...string) (pair, error) {
	return a.issue(&x509.Certificate{
		Subject:     pkix.Name{CommonName: user, Organization: groups},
		KeyUsage:    x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	})
}

// server makes what a server proves itself with.
func (a *authority) server(name string, names []string, addrs []netip.Addr) (pair, error) {
	template := &x509.Certificate{
		Subject: pkix.Name{CommonName: name}, DNSNames: names,
		KeyUsage:    x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	for _, ip := range addrs {
		template.IPAddresses = append(template.IPAddresses, net.IP(ip.AsSlice()))
	}
	return a.issue(template)
}

func (a *authority) issue(template *x509.Certificate) (p pair, err error) {
	key, err := newKey()
	if err != nil {
		return p, err
	}
	if p.cert, err = a.sign(template, key.Public()); err != nil {
		return p, err
	}
	p.key, err = keyPEM(key)
	return p, err
}

func keyPEM(key *ecdsa.PrivateKey) ([]byte, error) {
	der, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		return nil, fmt.Errorf("write key: %w", err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: der}), nil
}

// publicPEM is the key that tokens are verified with.
func publicPEM(key *ecdsa.PrivateKey) ([]byte, error) {
	der, err := x509.MarshalPKIXPublicKey(key.Public())
	if err != nil {
		return nil, fmt.Errorf("write public key: %w", err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: der}), nil
}

// writePKI writes what kube-apiserver and kube-controller-manager read.
func (c Config) writePKI(a *authority) error {
	p := c.paths()
	server, err := a.server("kube-apiserver",
		[]string{"localhost", "kubernetes", "kubernetes.default", "kubernetes.default.svc", "kubernetes.default.svc.cluster.local"},
		[]netip.Addr{netip.MustParseAddr("127.0.0.1"), controlIP, c.apiVIP()})
	if err != nil {
		return err
	}
	tokens, err := newKey()
	if err != nil {
		return err
	}
	private, err := keyPEM(tokens)
	if err != nil {
		return err
	}
	public, err := publicPEM(tokens)
	if err != nil {
		return err
	}
	for name, content := range map[string][]byte{
		"ca.crt": a.pem, "apiserver.crt": server.cert, "apiserver.key": server.key,
		"sa.key": private, "sa.pub": public,
	} {
		if err := os.WriteFile(p.pki(name), content, 0o600); err != nil {
			return fmt.Errorf("write certificates: %w", err)
		}
	}
	return nil
}

// credential is how a kubeconfig's user proves itself: a certificate or a token.
type credential struct {
	pair
	token string
}

// writeKubeconfig writes a kubeconfig for one user of the API server at address.
func writeKubeconfig(path, address string, ca []byte, user string, c credential) error {
	k := clientcmdapi.NewConfig()
	k.Clusters["lab"] = &clientcmdapi.Cluster{Server: "https://" + address, CertificateAuthorityData: ca}
	k.AuthInfos[user] = &clientcmdapi.AuthInfo{
		ClientCertificateData: c.cert, ClientKeyData: c.key, Token: c.token,
	}
	k.Contexts["lab"] = &clientcmdapi.Context{Cluster: "lab", AuthInfo: user}
	k.CurrentContext = "lab"
	if err := clientcmd.WriteToFile(*k, path); err != nil {
		return fmt.Errorf("write kubeconfig of %s: %w", user, err)
	}
	return nil
}
