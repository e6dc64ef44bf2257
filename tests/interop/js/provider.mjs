// The certified provider `oidc-provider` as a program: node provider.mjs REDIRECT_URI. Any name and password log in.
import { createServer } from 'node:http';
import Provider from 'oidc-provider';

const server = createServer();
server.listen(0, '127.0.0.1', () => {
  const issuer = `http://localhost:${server.address().port}`;
  const provider = new Provider(issuer, {
    clients: [{ client_id: 'penstock', client_secret: process.env.CLIENT_SECRET, redirect_uris: [process.argv[2]] }],
    pkce: { required: () => true },
    cookies: { keys: ['of the tests'] },
    ttl: { IdToken: 3600 },
  });
  server.on('request', provider.callback());
  console.log(`ready ${issuer}`);
});
