// A client made from the console's document consumes a group: consume.ts, compiled beside schema.d.ts; node consume.js URL GROUP FILTER
import createClient from 'openapi-fetch'
import type { paths } from './schema'

const [, , baseUrl, group, filter] = process.argv
const api = createClient<paths>({ baseUrl })
const params = { path: { group } }

async function main(): Promise<void> {
  const acked: Array<string | undefined> = []
  for (;;) {
    const popped = await api.POST('/api/v1/groups/{group}/pop', { params, body: { filter, most: 3, wait_s: 1, invisible_s: 60 } })
    if (!popped.data) throw new Error(JSON.stringify(popped.error))
    if (popped.data.messages.length === 0) break
    for (const each of popped.data.messages) {
      const body = { filter, handles: [each.handle] }
      const payload = each.message.payload ?? ''
      await api.POST('/api/v1/groups/{group}/extend', { params, body: { ...body, invisible_s: 120 } })
      if (payload === 'bad') await api.POST('/api/v1/groups/{group}/reject', { params, body: { ...body, reason: 'bad' } })
      else if (payload === 'later' && each.attempt === 1) await api.POST('/api/v1/groups/{group}/retry', { params, body: { ...body, after_s: 0 } })
      else {
        const done = await api.POST('/api/v1/groups/{group}/ack', { params, body })
        if (done.data?.settled !== 1) throw new Error(JSON.stringify(done.error))
        acked.push(`${payload} ${each.attempt}`)
      }
    }
  }
  const stale = await api.POST('/api/v1/groups/{group}/ack', { params, body: { filter, handles: ['no handle'] } })
  console.log(JSON.stringify({ acked, wrong: stale.error?.type }))
}
main().catch((error) => { console.error(error); process.exit(1) })
