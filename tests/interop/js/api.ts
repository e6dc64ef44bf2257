// A client made from the console's document publishes and reads: api.ts, compiled beside schema.d.ts; node api.js URL
import createClient from 'openapi-fetch'
import type { components, paths } from './schema'

type Receipt = components['schemas']['ReceiptModel']
type Page = components['schemas']['PageModel']
const api = createClient<paths>({ baseUrl: process.argv[2] })

async function main(): Promise<void> {
  const one = await api.POST('/api/v1/messages', { body: { topic: 'ts', payload: 'first', headers: { unit: 'C' } } })
  if (!one.response.ok || !one.data) throw new Error(JSON.stringify(one.error))
  const receipt = one.data as Receipt
  const several = await api.POST('/api/v1/messages', { body: [{ topic: 'ts', json: { n: 2 } }, { topic: 'ts', payload_base64: '?' }] })
  const found = await api.GET('/api/v1/messages/{message_id}', { params: { path: { message_id: receipt.message_id } } })
  const page = await api.GET('/api/v1/messages', { params: { query: { filter: 'ts', order: 'desc', limit: 10 } } })
  const wrong = await api.GET('/api/v1/messages', { params: { query: { filter: 'ts', limit: 0 } } })
  console.log(JSON.stringify({
    several: several.response.status,
    found: found.data?.headers,
    page: (page.data as Page).messages.map((message) => message.payload),
    wrong: wrong.error?.type,
  }))
}
main().catch((error) => { console.error(error); process.exit(1) })
